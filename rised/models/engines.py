"""The generation engines by ``type``. Each is imported only when a configuration asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from rised.models.engine import TransformersEngine
from rised.models.engine_settings import EngineSettings, VllmEngineSettings
from rised.models.vllm_devices import vllm_version


class EngineKind(Protocol):
    """How an engine of one type comes to be."""

    in_process: bool
    """Whether it generates with the very model that it is given, in this process."""

    def packages(self, settings: Any) -> dict[str, str]:
        """Packages that it needs beside the common ones, with versions. ConfigError if they are missing."""
        ...

    def make(
        self, settings: Any, model: PreTrainedModel, end_token_id: int, dtype: torch.dtype, weight_version: int | None
    ) -> AbstractContextManager[Any]:
        """The engine; what it starts, it starts when it is entered."""
        ...


class _Transformers:
    in_process = True

    def packages(self, settings: EngineSettings) -> dict[str, str]:
        return {}

    def make(
        self,
        settings: EngineSettings,
        model: PreTrainedModel,
        end_token_id: int,
        dtype: torch.dtype,
        weight_version: int | None,
    ) -> TransformersEngine:
        return TransformersEngine(model, end_token_id, dtype, weight_version=weight_version)


class _Vllm:
    in_process = False

    def packages(self, settings: VllmEngineSettings) -> dict[str, str]:
        return {"vllm": vllm_version(settings)}

    def make(
        self,
        settings: VllmEngineSettings,
        model: PreTrainedModel,
        end_token_id: int,
        dtype: torch.dtype,
        weight_version: int | None,
    ) -> AbstractContextManager[Any]:
        from rised.models.vllm_engine import VllmEngine

        return VllmEngine(settings, model, end_token_id, dtype, weight_version or 0)


ENGINES: Mapping[str, EngineKind] = {"transformers": _Transformers(), "vllm": _Vllm()}
