"""The policy of a run, ready to play: weights, tokenizer, chat rendering, generation engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rised.experiment import RunSettings
from rised.models.engines import ENGINES
from rised.models.loading import DTYPES, load_policy
from rised.models.rendering import ChatRendering


@dataclass(frozen=True, slots=True)
class Policy:
    """``engine`` plays with ``model``, with a copy of it, or has servers that do; they live inside ``with engine:``."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    rendering: ChatRendering
    engine: Any


def open_policy(config: RunSettings, weight_version: int | None = None) -> Policy:
    """Load the policy that ``config.model`` names; ModelError if it cannot be used, ConfigError without its engine.

    ``weight_version``: after how many updates its weights are, where that is known.
    """
    kind = ENGINES[config.engine.type]
    kind.packages(config.engine)
    model, tokenizer = load_policy(config.model)
    rendering = ChatRendering(
        tokenizer,
        system_in_user_turn=config.model.system_in_user_turn,
        template_arguments=dict(config.model.template_arguments),
    )
    dtype = DTYPES[config.model.rollout_dtype]
    engine = kind.make(config.engine, model, rendering.end_token_id, dtype, weight_version)
    return Policy(model, tokenizer, rendering, engine)
