"""Settings of AppWorld: where the engine and its data are, the task panels, limits of model-written code.

Import-light: nothing of the engine, which lives in an interpreter of its own, and nothing that looks at the disk.
"""

from __future__ import annotations

from typing import Annotated, Literal

from rised.config.settings import DISTINCT, Settings, operational, strict


class AppworldSettings(Settings):
    """AppWorld. The defaults are the benchmark's where it has one; the panels are the paper's."""

    prompt_style: Literal["full", "compact"] = strict(
        "full", description="full: instructions with a worked example; compact: the same rules in few lines [ours]"
    )
    python: str | None = operational(
        None,
        description="interpreter that has the appworld package; null: the variable APPWORLD_PYTHON, else what "
        "`make appworld` sets up",
    )
    root: str | None = operational(
        None, description="folder that holds AppWorld's downloaded `data`; null: the variable APPWORLD_ROOT"
    )
    train_dataset: str = strict("train", description="AppWorld's data set behind the train split")
    train_difficulties: Annotated[tuple[Literal[1, 2, 3], ...] | None, DISTINCT] = strict(
        (1, 2), description="difficulties of training tasks [paper: easy and medium]; null: all"
    )
    validation_dataset: str = strict("dev", description="AppWorld's data set behind the validation split [paper: dev]")
    validation_difficulties: Annotated[tuple[Literal[1, 2, 3], ...] | None, DISTINCT] = strict(
        None, description="difficulties of validation tasks; null: all [paper]"
    )
    output_limit_chars: int = strict(
        20_000, ge=100, description="characters of an output that are shown [published: the baseline agent's limit]"
    )
    execute_timeout_s: int = strict(
        30, ge=1, description="seconds one piece of code may run before it is interrupted (the engine allows 100)"
    )
    kill_after_s: float = operational(
        10.0, gt=0, description="seconds after that until code that ignores the interruption is killed"
    )
    api_calls_per_turn: int = strict(1000, ge=1, description="API calls that one piece of code may make [published]")
    random_seed: int = strict(100, description="seed of the engine's random numbers [published]")
    isolate: bool = operational(
        True,
        description="run code in a sandbox without network, your files and other processes (Linux namespaces); false: "
        "only in a container that holds nothing else",
    )
    memory_mb: int = operational(
        2048, ge=256, description="address space in MiB that a process of an episode may add to the engine's"
    )
    processes: int = operational(
        64, ge=1, description="open worlds per environment worker, about 80 MB each; further ones take turns by replay"
    )
    start_timeout_s: float = operational(
        120.0, gt=0, description="seconds until the engine is loaded, a world open or a verdict reached"
    )

    def dataset(self, split: str) -> tuple[str, tuple[int, ...] | None]:
        """AppWorld's data set and the difficulties of ``split`` (None: all)."""
        if split == "train":
            return self.train_dataset, self.train_difficulties
        if split == "validation":
            return self.validation_dataset, self.validation_difficulties
        raise ValueError(f"appworld has the splits 'train' and 'validation', not {split!r}")
