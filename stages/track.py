"""track: hand the metrics of an experiment's runs to TensorBoard, Weights & Biases (offline) or MLflow.

Reads committed steps only, so it can run beside the training, after it, or again: a mark in the tracker's folder says
how far each run was told. Training neither knows nor waits for it.

    python -m stages.track --runs results/laptop_grid --to tensorboard
    python -m stages.track --runs results/laptop_grid --to wandb --follow
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rised.config import ConfigError
from rised.config.overlays import compose
from rised.config.source import plain_value
from rised.records.files import write_bytes
from rised.records.layout import CONFIG, DONE
from rised.records.shards import RunReader
from stages.cli import bare_parser, run_stage
from stages.grid import read_grid
from stages.trackers.base import TrackedRun, Tracker, tracker_class, tracker_names


def find_runs(folder: Path) -> list[Path]:
    """Run directories ``<method>/seed-<s>`` below an experiment's folder."""
    return sorted(path.parent for path in folder.glob(f"*/seed-*/{CONFIG}"))


def expected(runs: Path) -> list[Path]:
    """DONE of every run that the experiment of that name plans; of those that are there where it has no file."""
    try:
        return [Path(done) for done in read_grid({"experiment": runs.name, "results": str(runs.parent)}).finished_runs]
    except ConfigError:
        return [run / DONE for run in find_runs(runs)] or [runs / DONE]


def describe(run: Path) -> TrackedRun:
    """The run's names and its settings, flat."""
    settings = plain_value(compose([run / CONFIG]))
    return TrackedRun(run.parent.parent.name, f"{run.parent.name}-{run.name}", dict(_flat(settings)))


def _flat(value: Any, above: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{above}.{key}" if above else str(key))]
    return [(above, value if isinstance(value, (int, float, bool)) else str(value))]


def metrics_by_step(run: Path, after: int) -> dict[int, dict[str, float]]:
    """step -> name -> value for steps after ``after``; undefined values (null) are left out."""
    reader = RunReader(run)
    steps = [step for step in reader.steps() if step > after]
    found: dict[int, dict[str, float]] = {step: {} for step in steps}
    for kind in ("metrics", "timings"):
        for row in reader.scan(kind, ["step", "name", "value"], steps=steps).to_pylist() if steps else []:
            if row["value"] is not None:
                found[row["step"]][row["name"]] = row["value"]
    return found


class Following:
    """One run and one tracker, opened when there is something to tell."""

    def __init__(self, run: Path, name: str, folder: Path) -> None:
        self.run, self.name, self.folder = run, name, folder
        self.mark = folder / f".{run.parent.name}-{run.name}.json"
        self.tracker: Tracker | None = None

    def catch_up(self) -> int:
        """Log every committed step that was not logged yet; how many there were."""
        last = json.loads(self.mark.read_text())["last_step"] if self.mark.is_file() else -1
        steps = metrics_by_step(self.run, last)
        for step, values in steps.items():
            if self.tracker is None:
                self.tracker = tracker_class(self.name)(describe(self.run), self.folder)
            self.tracker.log(step, values)
        if steps:
            self.mark.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self.mark, json.dumps({"last_step": max(steps)}).encode())
        return len(steps)

    def close(self) -> None:
        if self.tracker is not None:
            self.tracker.close()


def track(runs: Path, name: str, folder: Path, follow_s: float | None) -> None:
    """Bring a tracker up to date with every run; with ``follow_s``, look again so often until all runs are done."""
    tracker_class(name)
    following: dict[Path, Following] = {}
    try:
        while True:
            over = all(path.exists() for path in expected(runs))  # before the last look, so that it misses nothing
            found = find_runs(runs)
            if not found and follow_s is None:
                raise ConfigError(f"{runs} holds no runs (looked for <method>/seed-<s>/{CONFIG})")
            for run in found:
                one = following.setdefault(run, Following(run, name, folder))
                count = one.catch_up()
                if count:
                    print(f"{name}: {run.parent.name}/{run.name}: {count} steps", flush=True)
            if follow_s is None or over:
                return
            time.sleep(follow_s)
    finally:
        for one in following.values():
            one.close()


def main() -> None:
    parser = bare_parser("track", __doc__)
    parser.add_argument("--runs", type=Path, required=True, help="results folder of an experiment")
    parser.add_argument("--to", choices=tracker_names(), required=True, help="the tracker")
    parser.add_argument("--folder", type=Path, help="where it writes (default: trackers/NAME in the results folder)")
    parser.add_argument("--follow", action="store_true", help="go on until every run is done")
    parser.add_argument(
        "--every", type=float, default=30.0, help="seconds between two looks, with --follow (default: %(default)s)"
    )
    args = parser.parse_args()
    folder = args.folder or args.runs / "trackers" / args.to
    track(args.runs, args.to, folder, args.every if args.follow else None)


if __name__ == "__main__":
    run_stage(main)
