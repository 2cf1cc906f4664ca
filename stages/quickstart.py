"""quickstart: run an experiment's whole DAG on this machine and watch it.

Starts Snakemake on the local profile, shows the rules as they finish and every run's progress, and ends by printing
where the report is. A run that fails does not stop the others.
Interrupting or terminating it ends the runs at their last committed step; the same command goes on from there.

    python -m stages.quickstart --experiment quickstart --jobs 2
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rised.config.paths import shipped
from stages.cli import bare_parser, run_stage
from stages.grid import Grid, read_grid
from stages.progress import FILE, plain_line, run_table

POLL_S = 1.0


def snapshots(grid: Grid) -> list[dict[str, Any]]:
    """The latest progress of every run that has begun, in grid order."""
    found = []
    for done in grid.finished_runs:
        path = Path(done).with_name(FILE)
        if path.is_file():
            found.append(json.loads(path.read_text()))
    return found


def last_rule(log: Path) -> str:
    """The latest message that Snakemake printed about a job."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("Job ", "Finished job"))]
    return lines[-1] if lines else "planning"


def watch(grid: Grid, process: subprocess.Popen[bytes], log: Path, console: Console) -> int:
    """Show progress until Snakemake ends; its exit code."""
    shown: dict[str, int] = {}
    stages_shown: set[str] = set()
    live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
    if live:
        live.start()
    try:
        while process.poll() is None:
            time.sleep(POLL_S)
            current = snapshots(grid)
            rule = last_rule(log)
            if live:
                live.update(Group(Text(rule, style="dim"), run_table(current)))
            elif rule not in stages_shown:
                stages_shown.add(rule)
                console.print(rule, highlight=False, soft_wrap=True)
            for snapshot in [] if live else current:
                if shown.get(snapshot["run"]) != snapshot["step"] and snapshot["parts"]:
                    shown[snapshot["run"]] = snapshot["step"]
                    console.print(plain_line(snapshot), highlight=False, soft_wrap=True)
    finally:
        if live:
            live.stop()
    return process.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = bare_parser("quickstart", __doc__)
    parser.add_argument(
        "--experiment", default="quickstart", help="file of configs/experiments, without .yaml (default: %(default)s)"
    )
    parser.add_argument("--results", default="results", help="results root (default: %(default)s)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="jobs at a time; each uses one core (default: %(default)s)",
    )
    parser.add_argument("targets", nargs="*", help="Snakemake targets (default: the report)")
    args = parser.parse_args()
    console = Console()
    grid = read_grid({"experiment": args.experiment, "results": args.results})
    log = Path(grid.logs) / "snakemake.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(shipped("Snakefile")),
        "--cores",
        str(args.jobs),
        "--rerun-triggers",
        "mtime",
        "params",
        "input",
    ]
    command += ["--rerun-incomplete", "--nolock", "--keep-going", *args.targets]
    command += ["--config", f"experiment={args.experiment}", f"results={args.results}"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()
    console.print(f"Experiment {grid.name}: {', '.join(grid.methods)}; log: {log}", highlight=False)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code = watch(grid, process, log, console)
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGTERM)  # SIGINT is ignored by all that a shell started in the background
            process.wait()
            raise
    minutes = (time.monotonic() - started) / 60
    if code != 0:
        console.print(log.read_text(errors="replace")[-3000:], highlight=False, markup=False)
        console.print(f"failed after {minutes:.1f} minutes; logs are in {grid.logs}", style="bold red")
        sys.exit(code)
    console.print(f"Finished in {minutes:.1f} minutes.", highlight=False)
    console.print(f"Report: {Path(grid.report).resolve()}", style="bold green", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    run_stage(main)
