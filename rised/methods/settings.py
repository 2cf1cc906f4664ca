"""Settings of a method: its pieces by ``type``, the numbers of groups, and the KL regulariser that all methods share.

Import-light: the pieces' settings stand beside the pieces, which import no torch. What a type means is in its file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, model_validator

from rised.config.errors import ConfigError
from rised.config.loader import read_plain
from rised.config.settings import Chosen, Settings, strict
from rised.methods.errors import MethodError
from rised.methods.kl import KLEstimator
from rised.methods.registry import piece_class, piece_settings, settings_class
from rised.methods.streams import Reduction

SelectorSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "selector")),
    Chosen(partial(settings_class, "selector")),
]
AdvantageSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "advantage")),
    Chosen(partial(settings_class, "advantage")),
]
PolicyLossSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "policy_loss")),
    Chosen(partial(settings_class, "policy_loss")),
]
TeacherSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "teacher")),
    Chosen(partial(settings_class, "teacher")),
]
DistillationSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "distillation")),
    Chosen(partial(settings_class, "distillation")),
]
RewardSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "reward")),
    Chosen(partial(settings_class, "reward")),
]
SteeringSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "steering")),
    Chosen(partial(settings_class, "steering")),
]


def _default(type_name: str, description: str) -> Any:
    """A piece that is this type, with its own defaults, unless the config says otherwise."""
    return strict({"type": type_name}, description=description, validate_default=True)


class KLSettings(Settings):
    """KL to the reference. [paper: every method has it; ours: coefficient and estimator]"""

    coefficient: float = strict(1e-3, ge=0.0, description="Weight of the term; 0 leaves out the reference pass.")
    estimator: KLEstimator = strict(KLEstimator.K3, description="Estimator of the divergence: k1, k2 or k3.")
    reduction: Reduction = strict(Reduction.TOKEN_MEAN, description="From token losses to one number.")
    constant_length: int | None = strict(None, ge=1, description="L of the reduction constant_length, in tokens.")
    micro_batch_sequences: int | None = strict(
        None, ge=1, description="Sequences in a part of the reduction micro_batch_token_mean."
    )
    skip_zero_signal: bool = strict(
        False,
        description="Take the term over sequences with a policy gradient or a teacher only, in its mean too. Cheaper; "
        "but a method whose groups often carry neither then weighs it more per sequence, so leave it off where methods "
        "are compared (no shipped experiment sets it). The paper's step times show a reference pass over all.",
    )

    @model_validator(mode="after")
    def _length_with_its_reduction(self) -> KLSettings:
        if (self.reduction is Reduction.CONSTANT_LENGTH) != (self.constant_length is not None):
            raise ValueError("constant_length must be given exactly when reduction is constant_length")
        if (self.reduction is Reduction.MICRO_BATCH_TOKEN_MEAN) != (self.micro_batch_sequences is not None):
            raise ValueError("micro_batch_sequences must be given exactly when reduction is micro_batch_token_mean")
        return self


class MethodSettings(Settings):
    """One method as a composition of pieces."""

    name: str = strict(description="Name of the method in paths and tables.", pattern=r"^[a-z][a-z0-9_]*$")
    candidate_groups: int = strict(ge=1, description="Prompt groups to choose from in each update.")
    selected_groups: int = strict(ge=1, description="Prompt groups to train on in each update.")
    selector: SelectorSettings = strict(description="Which groups are trained on.")
    reward: RewardSettings = _default("environment", "The reward that training sees; evaluation keeps the raw one.")
    advantage: AdvantageSettings = _default("group_normalised", "From rewards to advantages.")
    policy_loss: PolicyLossSettings = _default("clipped_surrogate", "The policy-gradient loss.")
    kl: KLSettings = strict(KLSettings(), description="KL to the reference.")
    teacher: TeacherSettings = _default("none", "What the teacher reads.")
    distillation: DistillationSettings = _default("none", "The loss towards the teacher.")
    steering: SteeringSettings = _default("none", "What the next training rollouts are told to avoid.")

    @model_validator(mode="after")
    def _counts_and_pairs_fit(self) -> MethodSettings:
        if self.selected_groups > self.candidate_groups:
            raise ValueError(
                f"selected_groups {self.selected_groups} exceeds candidate_groups {self.candidate_groups}: "
                "select at most as many as are rolled out"
            )
        teacher, distillation = self.teacher.type, self.distillation.type  # type: ignore[attr-defined]
        advantage = self.advantage.type  # type: ignore[attr-defined]
        wants_gap = piece_class("advantage", advantage).shaped_by_teacher
        if (teacher == "none") != (distillation == "none" and not wants_gap):
            raise ValueError(
                f"teacher {teacher!r} with distillation {distillation!r} and advantage {advantage!r}: a teacher needs "
                "a distillation loss or an advantage that it shapes, and these the teacher; the two need each other"
            )
        policy_loss = self.policy_loss.coefficient  # type: ignore[attr-defined]
        if policy_loss == 0.0 and distillation == "none":
            raise ValueError("policy_loss.coefficient is 0 and there is no distillation loss: nothing would be learned")
        if policy_loss == 0.0 and wants_gap:
            raise ValueError(f"policy_loss.coefficient is 0, so that the advantage {advantage!r} would shape nothing")
        return self


def stale_mends(settings: MethodSettings) -> list[str]:
    """Keys below the method to set before tokens that older weights sampled may enter its losses; empty: they may.

    The KL regulariser is not asked: it is a mean over the tokens that were played, whoever sampled them.
    """
    found = []
    for kind in ("policy_loss", "distillation"):
        term = getattr(settings, kind)
        key = piece_class(kind, term.type).uncorrected(term) if term.coefficient > 0.0 else None
        if key is not None:
            found.append(f"{kind}.{key}")
    return found


SELECTORS = Path("configs/selectors.yaml")
SelectorCatalogue = Mapping[str, Any]
"""Name -> settings of a selector."""


def load_selectors(names: Sequence[str] = (), path: Path = SELECTORS) -> SelectorCatalogue:
    """The named selectors of the file, in the given order, or all of it.

    ConfigError for a name that it lacks, or an entry that is no selector.
    """
    document = read_plain(path)
    if not isinstance(document, dict) or set(document) != {"selectors"} or not isinstance(document["selectors"], dict):
        raise ConfigError(f"{path}: one mapping is expected under the key `selectors`: name -> a selector's settings")
    known = document["selectors"]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no selector {name!r} in {path}: choose of {', '.join(known)}, or add it there")
    found = {}
    for name in names or known:
        try:
            found[name] = piece_settings("selector", known[name])
        except MethodError as error:
            raise ConfigError(f"{path}: selectors.{name}: {error}") from None
    return found
