"""What the DAG plans a discovery with: its file, its folder, the runs that it reads. Loads nothing heavy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rised.config import ConfigError
from rised.config.overlays import compose
from rised.config.paths import shipped
from rised.config.source import plain_value

DISCOVERIES = Path("configs/discovery")
ASKING = ("propose", "normalise", "screen", "group")
"""Steps that ask a model, in their order; ``screen`` asks the tagger."""


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
    names its own rollouts. ``served``: step -> the judge file by which the server of its model is started, for the
    steps whose model says so.
    """

    name: str
    file: str
    folder: str
    finished_runs: list[str]
    launcher: Callable[..., str]
    served: Mapping[str, str]

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
        judge = self.served.get(step, "")
        later = ASKING[ASKING.index(step) + 1 :] if step in ASKING else ()
        lingers = bool(judge) and any(self.served.get(other) == judge for other in later)
        launcher = self.launcher("discovery", f"discovery-{step}", judge=judge, lingers=lingers)
        program = f"python -m rubric_discovery.{step} --config {{input.config:q}} {{params.options}}"
        return f"{launcher}{program} > {{log:q}} 2>&1"


def read_discovery(options: Mapping[str, Any], grid: GridLike) -> Discovery:
    """The discovery that ``--config discovery=NAME`` asks for; ConfigError for an unknown one.

    Results go to ``<results>/discovery/<name>``. A file without ``runs`` and ``rollouts`` reads the experiment's
    runs, or the finished ones below ``--config runs=DIR``.
    """
    name = str(options.get("discovery", "quickstart"))
    file = shipped(DISCOVERIES / f"{name}.yaml")
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in shipped(DISCOVERIES).glob("*.yaml"))) or "none"
        raise ConfigError(f"there is no discovery {name!r} in {DISCOVERIES}: choose one of {known}")
    document = plain_value(compose([file]))
    own = bool(document.get("runs") or document.get("rollouts"))
    marks = [] if own else list(grid.finished_runs)
    if grid.external_runs is not None and not own:
        marks = sorted(str(mark) for mark in Path(grid.external_runs).glob("**/seed-*/DONE"))
    folder = f"{grid.results}/discovery/{name}"
    return Discovery(name, str(file), folder, marks, grid.launch, _served(document, file))


def _served(document: Mapping[str, Any], file: Path) -> dict[str, str]:
    """Step -> judge file, by ``served_by`` of the model that it asks.

    ConfigError where that serves another model or elsewhere: the step would wait for a server that never comes.
    """
    strong = document.get("strong_model") or {}
    tagger = document.get("tagger") or strong
    found = {}
    for step in ASKING:
        key, model = ("tagger", tagger) if step == "screen" and document.get("tagger") else ("strong_model", strong)
        path = model.get("served_by") if model.get("type") == "server" else None
        if path is None:
            continue
        if not Path(path).is_file():
            raise ConfigError(f"{file}: {key}.served_by: there is no judge file {path}")
        judge = (plain_value(compose([Path(path)])).get("rubrics") or {}).get("judge") or {}
        for name in ("model", "endpoint"):
            if model.get(name) != judge.get(name):
                raise ConfigError(
                    f"{file}: {key}.{name} is {model.get(name)!r}, but {path}, which serves it, says "
                    f"{judge.get(name)!r}: make them equal"
                )
        found[step] = str(path)
    return found
