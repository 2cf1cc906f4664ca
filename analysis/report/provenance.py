"""What was run: configuration hashes, versions, panel and vocabulary, as each run recorded them when it began."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from analysis.panels import flat
from analysis.runs import Experiment

_LAYOUT = ("format", "version", "vocabulary_entries")
_PER_RUN = ("method", "seed", "config_hash")


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded fact: ``values`` holds (run labels, value); a single pair means that all runs agree."""

    key: str
    values: Sequence[tuple[str, str]]


def header_entries(experiment: Experiment) -> tuple[list[Entry], list[Entry]]:
    """What the runs recorded when they began: facts that all share, and facts in which they differ."""
    return _compare(
        {run.label: flat({k: v for k, v in run.header.items() if k not in _LAYOUT}) for run in experiment.runs}
    )


def config_entries(experiment: Experiment) -> tuple[list[Entry], list[Entry]]:
    """The resolved configurations, in the same two parts."""
    return _compare({run.label: flat(run.config) for run in experiment.runs})


def unexpected(experiment: Experiment) -> list[str]:
    """Recorded facts, beyond method and seed, in which runs of one experiment should not differ but do."""
    differing = [entry.key for entry in header_entries(experiment)[1] if entry.key not in _PER_RUN]
    return [f"The runs were not made alike: {', '.join(differing)} differ (see Provenance)"] if differing else []


def description(experiment: Experiment) -> str:
    """The experiment's own sentence, from the first configuration that has one."""
    return next((text for run in experiment.runs if (text := str(run.config.get("description") or ""))), "")


def software() -> str:
    """The versions that made the report."""
    packages = ("rised", "pyarrow", "pandas", "numpy", "scipy", "matplotlib")
    found = [f"{name} {version(name)}" for name in packages if _is_installed(name)]
    return ", ".join([f"Python {platform.python_version()}", *found])


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _compare(headers: Mapping[str, Mapping[str, Any]]) -> tuple[list[Entry], list[Entry]]:
    keys = sorted({key for header in headers.values() for key in header})
    shared, differing = [], []
    for key in keys:
        labels: dict[str, list[str]] = {}
        for label, header in headers.items():
            labels.setdefault(_text(header[key]) if key in header else "not recorded", []).append(label)
        if len(labels) == 1:
            shared.append(Entry(key, [("all runs", next(iter(labels)))]))
        else:
            differing.append(Entry(key, [(", ".join(runs), value) for value, runs in labels.items()]))
    return shared, differing


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
