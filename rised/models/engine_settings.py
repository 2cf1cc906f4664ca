"""Settings of the engines that generate rollouts, a class by ``type``. No torch here: configs load without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from rised.config import Settings, operational, strict
from rised.models.server_settings import ServerSettings

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0


class EngineSettings(Settings):
    """Generation by transformers in the process itself, whose episodes advance in lock-step."""

    type: Literal["transformers"] = strict("transformers", description="In the process itself, with transformers.")

    @property
    def gives_up_episodes(self) -> bool:
        """Whether single episodes can be ended before their time."""
        return False

    @property
    def longest_text(self) -> int | None:
        """Tokens of the longest prompt and reply; None: as the model says."""
        return None

    def draws_at(self, temperature: float) -> bool:
        """Whether it samples at this temperature as it is asked to."""
        return True


class VllmEngineSettings(ServerSettings):
    """Generation by vLLM servers that belong to the process, whose episodes go on by themselves.

    The words of ``command`` and ``arguments`` may hold {python}, {weights}, {socket}, {dtype} (`model.rollout_dtype`),
    {max_model_len} and {tensor_parallel}. Each process that plays has ``replicas`` servers of its own, on the GPUs that
    it was given.
    """

    type: Literal["vllm"] = strict(description="By vLLM servers that the process starts for itself.")
    command: list[str] = operational(
        [
            *("{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{weights}", "--uds", "{socket}"),
            *("--dtype", "{dtype}", "--max-model-len", "{max_model_len}"),
            *("--tensor-parallel-size", "{tensor_parallel}"),
        ],
        min_length=1,
        description="the server's command, word by word, with placeholders; what keeps ids and log-probabilities "
        "right (tokens only, processed log-probabilities, no sampling defaults of the model) is added to it",
    )
    arguments: list[str] = strict(
        [], description="further words of the command; strict, because they may change the numbers"
    )
    max_model_len: int | None = strict(
        None, gt=1, description="tokens of the longest prompt and reply; null: the model's own limit"
    )
    concurrency: int = operational(256, gt=0, description="episodes (and requests) that one process has at once")
    request_timeout_s: float = operational(600.0, gt=0, description="deadline of one reply, its queueing included")
    request_attempts: int = operational(4, gt=0, description="how often a request is asked until the run stops")
    update_timeout_s: float = operational(
        600.0, gt=0, description="deadline of one step of a weight update, replies in flight included"
    )
    handover: Literal["files", "nccl"] = operational(
        "files",
        description="how new weights reach the servers: through a directory, or from GPU to GPU (not run on a GPU yet)",
    )
    weights_folder: str | None = operational(
        None,
        description="folder for the weights that are handed over; null: the temporary directory. Two versions stay",
    )
    logs_folder: str | None = operational(
        None, description="folder where the servers' logs stay; null: they go with the servers"
    )

    @property
    def gives_up_episodes(self) -> bool:
        return True

    @property
    def longest_text(self) -> int | None:
        return self.max_model_len

    def draws_at(self, temperature: float) -> bool:
        """vLLM refuses temperatures above 2, and takes those below 0.01 for another."""
        return temperature == 0.0 or LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE


def _type_of(value: Any) -> Any:
    return value.get("type", "transformers") if isinstance(value, Mapping) else getattr(value, "type", None)


AnyEngineSettings = Annotated[
    Annotated[EngineSettings, Tag("transformers")] | Annotated[VllmEngineSettings, Tag("vllm")],
    Discriminator(
        _type_of, custom_error_type="engine_type", custom_error_message="type should be 'transformers' or 'vllm'"
    ),
]
"""The engines that a configuration may name by ``type``; without it the one in the process itself."""
