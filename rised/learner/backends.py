"""The learners by ``type``. Each is imported only when a configuration asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

from transformers import PreTrainedModel

from rised.learner.errors import LearnerError
from rised.learner.learner import Learner
from rised.learner.ranks import ALONE, LearnerRanks
from rised.learner.settings import LearnerSettings


def _torch() -> type[Learner]:
    return Learner


def _deepspeed() -> type[Learner]:
    if find_spec("deepspeed") is None:
        raise LearnerError(
            "learner.type is deepspeed, but DeepSpeed is not installed: DS_BUILD_OPS=0 pip install 'rised[deepspeed]', "
            "or set learner.type: torch"
        )
    from rised.learner.zero import DeepSpeedLearner

    return DeepSpeedLearner


BACKENDS: Mapping[str, Callable[[], type[Learner]]] = {"torch": _torch, "deepspeed": _deepspeed}


def make_learner(
    model: PreTrainedModel,
    reference_model: PreTrainedModel | None,
    settings: LearnerSettings,
    *,
    temperature: float,
    ranks: LearnerRanks = ALONE,
) -> Learner:
    """The learner that ``settings.type`` names. LearnerError if its packages are missing."""
    return BACKENDS[settings.type]()(model, reference_model, settings, temperature=temperature, ranks=ranks)
