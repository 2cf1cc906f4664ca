"""The policy of a run, ready to play: weights, tokenizer, chat rendering, generation engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rised.experiment import RunSettings
from rised.models.devices import own_device
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


def open_policy(
    config: RunSettings, weight_version: int | None = None, *, computes: bool = False, plays: bool = True
) -> Policy:
    """Load the policy that ``config.model`` names; ModelError if it cannot be used, ConfigError without its engine.

    The model lies on this process's device where something is computed with it: by the caller (``computes``), or by
    an engine of the process itself where it ``plays``. Otherwise it waits in host memory to be handed over.
    ``weight_version``: after how many updates its weights are, where that is known.
    """
    kind = ENGINES[config.engine.type]
    kind.packages(config.engine)
    model, tokenizer = load_policy(config.model)
    device = own_device() if computes or (plays and kind.in_process) else torch.device("cpu")
    model.to(device)  # type: ignore[arg-type]
    rendering = ChatRendering(
        tokenizer,
        system_in_user_turn=config.model.system_in_user_turn,
        template_arguments=dict(config.model.template_arguments),
    )
    dtype = DTYPES[config.model.rollout_dtype]
    engine = kind.make(config.engine, model, rendering.end_token_id, dtype, weight_version)
    return Policy(model, tokenizer, rendering, engine)
