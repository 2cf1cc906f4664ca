"""status: one line for each stage of an experiment: its job, what it does, how far it is, what went wrong.

Servers that its stages hold stand below, each with how many hold it.

python -m slurm.status --runs results/laptop_grid
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rised.config.paths import add_named_path, required
from slurm.errors import StageFailed
from slurm.job_files import JobFiles, read_json
from slurm.queue import GONE, job_states
from slurm.service import HOLDERS, holder_files, holder_lives
from stages.attempts import read_attempts, read_events

PROGRESS = ".progress.json"
"""What a train stage keeps up to date in its run directory."""


@dataclass(frozen=True, slots=True)
class StageStatus:
    """What is known of one stage; "" where nothing is."""

    name: str
    job: str
    state: str
    step: str
    success: str
    eta: str
    starts: int
    repeated_steps: int
    last_error: str
    log: str


def read_status(experiment: Path) -> list[StageStatus]:
    """Every stage that was ever launched below ``experiment``, by name. FileNotFoundError if there is none."""
    folders = sorted(path.parent for path in (experiment / "logs" / "jobs").glob("*/job.json"))
    if not folders:
        raise FileNotFoundError(f"{experiment} has no jobs (looked in {experiment / 'logs' / 'jobs'})")
    folders += sorted(path.parent for path in experiment.absolute().parent.glob("services/*/job.json"))
    records = {folder: read_json(JobFiles(folder).job) or {} for folder in folders}
    states = job_states([r["job"] for r in records.values() if r["executor"] == "slurm" and r["end"] is None])
    return [_status(folder, record, states) for folder, record in records.items()]


def _status(folder: Path, record: dict[str, Any], states: dict[str, str]) -> StageStatus:
    run = Path(record["outputs"][0]).parent if record["outputs"] else folder
    progress = read_json(run / PROGRESS) or {}
    attempts = read_attempts(run)
    jobs_started = sum(event.get("event") == "started" for event in read_events(JobFiles(folder).attempts))
    found = states.get(record["job"], "")
    running = "lost: run again" if found == GONE else found
    state = record["end"] or (running if record["executor"] == "slurm" else "open")
    rates = progress.get("validation", {})
    eta = progress.get("eta_s") if record["end"] is None else None
    logs = sorted([*(folder / record["job"]).glob("*_0_log.out"), *folder.glob(f"parts/{record['job']}_*_0_log.out")])
    holders = sum(map(holder_lives, holder_files(folder))) if (folder / HOLDERS).is_dir() else None
    return StageStatus(
        name=folder.name if holders is None else f"{folder.name}, held by {holders}",
        job=record["job"],
        state=state,
        step=_step(folder, record, progress),
        success=" ".join(f"{name} {rate:.0%}" for name, rate in rates.items() if rate is not None),
        eta="" if eta is None else f"{eta // 3600}:{eta // 60 % 60:02d}:{eta % 60:02d}",
        starts=max(attempts.starts, jobs_started),
        repeated_steps=attempts.repeated_steps,
        last_error=record["last_line"],
        log=str(logs[-1]) if logs else "",
    )


def _step(folder: Path, record: dict[str, Any], progress: dict[str, Any]) -> str:
    """How far a run's updates are, or a job array's parts."""
    if progress:
        return f"{progress['step']}/{progress['total']}"
    parts = record["parts"]
    if len(parts) < 2:
        return ""
    done = sum(JobFiles(folder).finished_part(part).is_file() for part in parts)
    return f"{done}/{len(parts)} parts"


def show(found: list[StageStatus], console: Console) -> None:
    """A table, and below it the log of every stage that failed."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("stage", "job", "state", "step", "validation", "ETA", "starts", "repeated"):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(
            one.name, one.job, one.state, one.step, one.success, one.eta, str(one.starts), str(one.repeated_steps)
        )
    console.print(table)
    for one in found:
        if one.last_error:
            text = f"{one.name}: {one.last_error}\n  log: {one.log}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m slurm.status", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_named_path(parser, "runs", "results folder of an experiment")
    args = parser.parse_args()
    try:
        show(read_status(required(parser, args, "runs")), Console())
    except (StageFailed, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
