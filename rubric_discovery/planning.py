"""What the DAG plans a discovery with: its file, its folder, the runs that it reads. Loads nothing heavy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rised.config import ConfigError
from rised.config.overlays import compose
from rised.config.source import plain_value

DISCOVERIES = Path("configs/discovery")


class GridLike(Protocol):
    """What a discovery asks of the experiment's grid."""

    @property
    def results(self) -> str: ...

    @property
    def external_runs(self) -> str | None: ...

    @property
    def finished_runs(self) -> list[str]: ...

    @property
    def launch(self) -> Callable[..., str]: ...


@dataclass(frozen=True, slots=True)
class Discovery:
    """A discovery in the DAG. ``finished_runs``: marks of the experiment's runs that it reads; none where the file
    names its own rollouts.
    """

    name: str
    file: str
    folder: str
    finished_runs: list[str]
    launcher: Callable[..., str]

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @property
    def options(self) -> str:
        """The common options of every step, quoted for a shell."""
        words = ["--out", self.folder]
        if self.finished_runs:
            words += ["--runs", *(str(Path(mark).parent) for mark in self.finished_runs)]
        return " ".join(map(shlex.quote, words))

    @property
    def vocabulary(self) -> str:
        return self.path("vocabulary.yaml")

    def message(self, words: str, note: str) -> str:
        """What a rule says. ``note``: of its job on a cluster."""
        return f"Discovery {words}{note}"

    def command(self, step: str) -> str:
        """A step's command, for a rule with ``config`` among its inputs: the launcher of jobs, if any, and it."""
        launcher = self.launcher("discovery", f"discovery-{step}")
        program = f"python -m rubric_discovery.{step} --config {{input.config:q}} {{params.options}}"
        return f"{launcher}{program} > {{log:q}} 2>&1"


def read_discovery(options: Mapping[str, Any], grid: GridLike) -> Discovery:
    """The discovery that ``--config discovery=NAME`` asks for; ConfigError for an unknown one.

    Results go to ``<results>/discovery/<name>``. A file without ``runs`` and ``rollouts`` reads the experiment's
    runs, or the finished ones below ``--config runs=DIR``.
    """
    name = str(options.get("discovery", "quickstart"))
    file = DISCOVERIES / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in DISCOVERIES.glob("*.yaml"))) or "none"
        raise ConfigError(f"there is no discovery {name!r} in {DISCOVERIES}: choose one of {known}")
    document = plain_value(compose([file]))
    own = bool(document.get("runs") or document.get("rollouts"))
    marks = [] if own else list(grid.finished_runs)
    if grid.external_runs is not None and not own:
        marks = sorted(str(mark) for mark in Path(grid.external_runs).glob("**/seed-*/DONE"))
    return Discovery(name, str(file), f"{grid.results}/discovery/{name}", marks, grid.launch)
