"""The check that all runs of an experiment were evaluated on the same tasks, before anything is compared."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from analysis import AnalysisError
from analysis.runs import Experiment, Run


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        found.update(flat(item, f"{name}.") if isinstance(item, Mapping) else {name: item})
    return found


def recorded_panel(run: Run) -> str | None:
    """The hashes of task panels in the run's header, as "train 1f2e…, validation 3c4d…" in full; None without any."""
    entries = {k.rsplit(".", 1)[-1]: v for k, v in flat(run.header).items() if "panel" in k and isinstance(v, str)}
    return ", ".join(f"{name} {value}" for name, value in sorted(entries.items())) or None


def evaluated_panel(run: Run) -> str | None:
    """Hash of the validation tasks that stand in the run's shards at its first evaluated step; None without shards."""
    table = run.reader.scan("validation", ["step", "environment", "task_id"])
    if not table.num_rows:
        return None
    first = table.filter(pc.equal(table["step"], pc.min(table["step"])))
    tasks = sorted({(row["environment"], row["task_id"]) for row in first.to_pylist()})
    return f"{len(tasks)} tasks {hashlib.sha256(repr(tasks).encode()).hexdigest()}"


def check_panels(experiment: Experiment) -> None:
    """Raise AnalysisError that names the runs and their hashes when the panels differ."""
    for kind, read in (("recorded task panel", recorded_panel), ("evaluated validation tasks", evaluated_panel)):
        runs_by_hash: dict[str, list[str]] = defaultdict(list)
        for run in experiment.runs:
            found = read(run)
            if found is not None:
                runs_by_hash[found].append(f"{run.method}/seed-{run.seed}")
        if len(runs_by_hash) > 1:
            lines = [f"  {shown}: {', '.join(runs)}" for shown, runs in runs_by_hash.items()]
            raise AnalysisError(
                f"{experiment.path}: the runs cannot be compared, their panels differ ({kind}):\n"
                + "\n".join(lines)
                + "\nAnalyse them apart, or run the odd ones again on the shared panel."
            )
