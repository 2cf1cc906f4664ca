"""The configuration of the nano policy's build, put together from the rooms' own settings."""

from __future__ import annotations

from pydantic import model_validator

from rised.config import Settings, strict
from rised.environments.mix import EnvironmentMix, PanelSettings
from rised.models.nano.settings import NanoShape, WarmStartSettings
from rised.rubrics.blocks import BlockStyle
from rised.rubrics.settings import RubricSettings


class NanoPolicyConfig(Settings):
    """How the nano policy is built: tokenizer and supervised warm start on the experts of these environments."""

    environments: EnvironmentMix = strict(description="Environments whose experts demonstrate.")
    panels: PanelSettings = strict(
        PanelSettings(), description="Task panels; the demonstrated tasks are of the split `sft`."
    )
    rubrics: RubricSettings = strict(RubricSettings(), description="Vocabulary and judge of the blocks.")
    block_style: BlockStyle = strict("compact", description="How hint and avoid blocks are written.")
    shape: NanoShape = strict(NanoShape(), description="Shape of the model.")
    warm_start: WarmStartSettings = strict(description="Supervised training.")

    @model_validator(mode="after")
    def _every_environment_demonstrates(self) -> NanoPolicyConfig:
        missing = [name for name in self.environments if name not in self.warm_start.demonstrations]
        if missing:
            raise ValueError(f"warm_start.demonstrations: add a number for {', '.join(missing)}")
        return self
