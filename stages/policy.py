"""The policy of a run, ready to play: weights, tokenizer, chat rendering, generation engine."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rised.experiment import RunSettings
from rised.models.engine import TransformersEngine
from rised.models.loading import DTYPES, load_policy
from rised.models.rendering import ChatRendering


@dataclass(frozen=True, slots=True)
class Policy:
    """``engine`` generates with ``model``, or with a copy of it where the rollout's dtype is another."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    rendering: ChatRendering
    engine: TransformersEngine


def open_policy(config: RunSettings) -> Policy:
    """Load the policy that ``config.model`` names; ModelError if it cannot be used."""
    model, tokenizer = load_policy(config.model)
    rendering = ChatRendering(
        tokenizer,
        system_in_user_turn=config.model.system_in_user_turn,
        template_arguments=dict(config.model.template_arguments),
    )
    engine = TransformersEngine(model, rendering.end_token_id, DTYPES[config.model.rollout_dtype])
    return Policy(model, tokenizer, rendering, engine)
