"""Finding the runs of an experiment: ``<experiment>/<method>/seed-<s>/``, finished or not.

What a run stores is read through ``rised.records``; what it means is in ``frames``. A run that is absent or
unfinished is part of the description of an experiment, so that every table can say so. Which run it is, its own
``manifest.json`` says; a folder with another name, or with the records of a run that is there already, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from analysis import AnalysisError
from analysis.names import method_name, ordered_methods
from analysis.sources import NotedReader
from rised.records.layout import HEADER, TIMINGS
from rised.records.shards import RunReader


@dataclass(frozen=True)
class Run:
    """One training run on disk. ``complete`` means that the run itself wrote its DONE file."""

    experiment: str
    method: str
    seed: int
    path: Path

    @cached_property
    def reader(self) -> RunReader:
        return NotedReader(self.path)

    @property
    def complete(self) -> bool:
        return self.reader.done

    @cached_property
    def header(self) -> dict[str, Any]:
        """Versions and hashes that the run recorded when it started."""
        return self.reader.header()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration that was saved with the run."""
        try:
            loaded = YAML(typ="safe").load(self.reader.config_text())
        except YAMLError as error:
            raise AnalysisError(f"{self.path / 'config.yaml'} is not readable YAML: {error}") from error
        return loaded if isinstance(loaded, dict) else {}

    @property
    def last_step(self) -> int:
        """The last committed step; 0 when nothing is committed yet."""
        return max(self.reader.steps(), default=0)

    @property
    def planned(self) -> int | None:
        """Updates that the configuration asks for."""
        updates = self.config.get("updates")
        return updates if isinstance(updates, int) else None

    @property
    def label(self) -> str:
        return f"{method_name(self.method)} seed {self.seed}"

    @property
    def name(self) -> str:
        """What the run's rollouts call it."""
        return f"{self.experiment}/{self.method}/seed-{self.seed}"

    def fingerprint(self) -> str:
        """SHA-256 over the lists of shards, which name the hash of every shard: equal for equal records.

        A compacted run's differs from that of the run it was made from: their files are not the same.
        """
        digest = hashlib.sha256()
        for kind in self.reader.kinds():
            if kind != TIMINGS:
                for shard in self.reader.shards(kind):
                    digest.update(f"{shard.path} {shard.sha256}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Experiment:
    """The runs below one experiment folder, methods in the paper's order, seeds ascending."""

    name: str
    path: Path
    runs: Sequence[Run]

    @property
    def methods(self) -> list[str]:
        return ordered_methods({run.method for run in self.runs})

    @property
    def seeds(self) -> list[int]:
        """All seeds that any method has."""
        return sorted({run.seed for run in self.runs})

    def of(self, method: str) -> list[Run]:
        return [run for run in self.runs if run.method == method]

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs if not run.complete]

    @property
    def missing(self) -> list[tuple[str, int]]:
        """Pairs of method and seed that others of the experiment have and that are not there."""
        present = {(run.method, run.seed) for run in self.runs}
        return [(m, s) for m in self.methods for s in self.seeds if (m, s) not in present]

    def gaps(self) -> list[str]:
        """One sentence per run that is missing or unfinished; empty when the grid is whole."""
        texts = [
            f"{run.label}: unfinished at update {run.last_step}" + (f" of {run.planned}" if run.planned else "")
            for run in self.unfinished
        ]
        return texts + [f"{method_name(method)} seed {seed}: not run" for method, seed in self.missing]


def find_experiment(root: Path, name: str | None = None) -> Experiment:
    """The experiment at ``root`` (its folder, or a results folder that holds it).

    Raises AnalysisError when there is none, or several and no name was given.
    """
    if not root.is_dir():
        raise AnalysisError(f"there is no folder {root}; give the results folder, or one experiment in it, as --runs")
    candidates = [root] if _run_folders(root) else [p for p in sorted(root.iterdir()) if p.is_dir() and _run_folders(p)]
    if name is not None:
        candidates = [path for path in candidates if path.name == name]
    if not candidates:
        wanted = f"experiment {name!r}" if name else "run"
        raise AnalysisError(
            f"no {wanted} below {root}: expected <method>/seed-<number>/manifest.json, or that below one more folder"
        )
    if len(candidates) > 1:
        names = ", ".join(path.name for path in candidates)
        raise AnalysisError(f"{root} holds several experiments ({names}); name one with --experiment")
    path = candidates[0]
    runs = [_identified(folder) for folder in _run_folders(path)]
    experiments = sorted({run.experiment for run in runs})
    if len(experiments) > 1:
        raise AnalysisError(
            f"{path} holds runs of several experiments ({', '.join(experiments)}), as their manifest.json says: "
            + ", ".join(f"{run.path.parent.name}/{run.path.name} of {run.experiment}" for run in runs)
            + ". Move each experiment's runs to a folder of that name."
        )
    _refuse_copies(runs)
    order = {method: i for i, method in enumerate(ordered_methods({run.method for run in runs}))}
    return Experiment(experiments[0], path, sorted(runs, key=lambda run: (order[run.method], run.seed)))


def _run_folders(experiment: Path) -> list[Path]:
    """Run folders that were started: they have a header."""
    found = sorted(experiment.glob("*/seed-*"))
    return [folder for folder in found if folder.name[len("seed-") :].isdigit() and (folder / HEADER).is_file()]


def _identified(folder: Path) -> Run:
    """The run that the folder's header names. AnalysisError if it names none, or the folder has another's name."""
    header = RunReader(folder).header()
    experiment, method, seed = (header.get(name) for name in ("experiment", "method", "seed"))
    if not (isinstance(experiment, str) and isinstance(method, str) and isinstance(seed, int)):
        raise AnalysisError(f"{folder / HEADER} does not say of which experiment, method and seed the run is")
    expected = f"{method}/seed-{seed}"
    found = f"{folder.parent.name}/{folder.name}"
    if found != expected:
        raise AnalysisError(
            f"{folder}: its {HEADER} says {experiment}/{expected}, the folder says {found}. It is a copy or was "
            f"renamed: remove it, or call it {expected} if that run is not there."
        )
    return Run(experiment, method, seed, folder)


def _refuse_copies(runs: Sequence[Run]) -> None:
    """AnalysisError when two folders hold the same records, whatever their headers say."""
    known: dict[str, Run] = {}
    for run in runs:
        if not any(run.reader.shards(kind) for kind in run.reader.kinds() if kind in ("rollouts", "validation")):
            continue  # without episodes there is nothing that tells two runs apart
        other = known.setdefault(run.fingerprint(), run)
        if other is not run:
            raise AnalysisError(f"{run.path} holds the records of {other.path}: one is a copy. Remove it.")
