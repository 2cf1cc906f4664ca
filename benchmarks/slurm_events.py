"""What each event on a cluster costs: steps done again, and seconds until the next new step.

Starts a cluster of three pretended nodes on this machine (root, Slurm installed), runs a stage of half-second steps
through the launcher, causes one event after the other, and times a stage that does nothing through every executor.
Prints two tables in Markdown; `--out FILE` also writes them as Parquet.

    python -m benchmarks.slurm_events
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from slurm.one_host import OneHostCluster

STEP_S = 0.5
STEPS, FIRST_STEPS = 40, 6
LIMIT_STEPS = 150
REPEATS = 5
NODE_TIMEOUT_S = 10
SITE = """\
signal_delay_s: 20
finish_step_s: 10
poll_s: 1
lost_after_s: 5
stages:
  count: {time_min: 5, cpus_per_task: 1, memory_gb: 0.2}
  brief: {time_min: 1, cpus_per_task: 1, memory_gb: 0.2}
  low: {time_min: 5, cpus_per_task: 4, memory_gb: 0.2, partition: low}
"""


@dataclass(frozen=True)
class Event:
    """``pause_s``: the longest time between the ends of two new steps, beyond the ``STEP_S`` of a step."""

    event: str
    jobs_started: int
    steps_repeated: int
    pause_s: float


class Run:
    """One counting stage: its launchers and what it has written."""

    def __init__(self, folder: Path, variables: dict[str, str], stage: str = "count", steps: int = STEPS) -> None:
        self.folder, self.stage, self.steps_wanted = folder, stage, steps
        self.variables = os.environ | variables
        folder.mkdir()
        (folder / "site.yaml").write_text(SITE)

    def launch(self) -> subprocess.Popen[bytes]:
        """A launcher in the background."""
        out = self.folder / "out"
        command = [
            sys.executable,
            "-m",
            "slurm.launch",
            "--site",
            str(self.folder / "site.yaml"),
            "--stage",
            self.stage,
        ]
        command += ["--name", self.folder.name, "--folder", str(self.folder / "job"), "--resumes", "--output", str(out)]
        command += ["--", sys.executable, "-m", "benchmarks.slurm_events", "--count", str(out)]
        command += ["--steps", str(self.steps_wanted)]
        with (self.folder / "launcher.log").open("ab") as log:
            return subprocess.Popen(
                command, env=self.variables, stdout=log, stderr=log, start_new_session=True, preexec_fn=_heed
            )

    def steps(self) -> list[tuple[int, float]]:
        """(step, when it ended) in the order in which they were done."""
        path = self.folder / "out.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), float(at)) for step, at in (line.split() for line in lines)]

    def await_step(self, number: int) -> None:
        """Until the step is done."""
        while not any(step >= number for step, _ in self.steps()):
            time.sleep(0.05)

    def job(self) -> str:
        """Id of its job."""
        asked = self.ask("squeue", "--noheader", "--format=%A %j")
        return next(line.split()[0] for line in asked.splitlines() if line.split()[1].startswith(self.folder.name))

    def ask(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        return subprocess.run(command, env=self.variables, check=True, capture_output=True, text=True).stdout

    def starts(self) -> int:
        """How often a job began to run the stage."""
        return (self.folder / "job" / "attempts.jsonl").read_text().count('"started"')


def _heed() -> None:
    """A shell makes what it starts in the background ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def count(out: Path, steps: int) -> None:
    """The stage: so many steps, resumed where they stopped; SIGUSR2 ends it after one."""
    asked = []
    signal.signal(signal.SIGUSR2, lambda *_: asked.append(True))
    path = out.with_name("out.steps")
    done = max((int(line.split()[0]) for line in path.read_text().splitlines()), default=0) if path.exists() else 0
    for step in range(done + 1, steps + 1):
        time.sleep(STEP_S)
        with path.open("a") as stream:
            stream.write(f"{step} {time.time()}\n")
        if asked and step < steps:
            sys.exit(75)
    out.write_text("done\n")


def measure(name: str, run: Run, cause: Callable[[Run, subprocess.Popen[bytes]], bool]) -> Event:
    """Cause an event after some steps. ``cause`` says whether a new launcher has to be started."""
    launcher = run.launch()
    run.await_step(FIRST_STEPS)
    again = cause(run, launcher)
    if again:
        launcher.wait()
        launcher = run.launch()
    if launcher.wait():
        raise RuntimeError(f"{name}: {(run.folder / 'launcher.log').read_text()}")
    return outcome(name, run)


def outcome(name: str, run: Run) -> Event:
    """What the event cost, from the steps' times."""
    steps = run.steps()
    first: dict[int, float] = {}
    for step, ended in steps:
        first.setdefault(step, ended)
    ends = sorted(first.values())
    pause = max(b - a for a, b in zip(ends, ends[1:], strict=False)) - STEP_S
    return Event(name, run.starts(), len(steps) - len(first), round(pause, 1))


def at_the_limit(run: Run) -> Event:
    """A run longer than its job's limit of one minute."""
    if run.launch().wait():
        raise RuntimeError((run.folder / "launcher.log").read_text())
    return outcome("time limit", run)


def events(cluster: OneHostCluster, folder: Path) -> list[Event]:
    """Every event on a run of its own."""

    def ordered(*command: str) -> Callable[[Run, subprocess.Popen[bytes]], bool]:
        def cause(run: Run, launcher: subprocess.Popen[bytes]) -> bool:
            run.ask(*command, run.job())
            return command[0] == "scancel"

        return cause

    def signalled(number: signal.Signals) -> Callable[[Run, subprocess.Popen[bytes]], bool]:
        def cause(run: Run, launcher: subprocess.Popen[bytes]) -> bool:
            launcher.send_signal(number)
            return True

        return cause

    def preempted(run: Run, launcher: subprocess.Popen[bytes]) -> bool:
        run.ask("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
        return False

    def without_controller(run: Run, launcher: subprocess.Popen[bytes]) -> bool:
        cluster.stop_controller()
        time.sleep(5)
        cluster.start_controller()
        return False

    def without_node(run: Run, launcher: subprocess.Popen[bytes]) -> bool:
        node = run.ask("squeue", "--noheader", f"--jobs={run.job()}", "--format=%N").strip()
        cluster.kill_node(node)
        return False

    def run(name: str, stage: str = "count", steps: int = STEPS) -> Run:
        return Run(folder / name, cluster.variables, stage, steps)

    found = [
        measure("launcher killed (SIGKILL), started again", run("killed"), signalled(signal.SIGKILL)),
        measure("terminal closed (SIGHUP), started again", run("hung-up"), signalled(signal.SIGHUP)),
        measure("Ctrl-C, started again", run("interrupted"), signalled(signal.SIGINT)),
        measure("scancel by someone else, started again", run("cancelled"), ordered("scancel")),
        measure("scontrol requeue", run("requeued"), ordered("scontrol", "requeue")),
        measure("preemption by a higher partition (3 s)", run("preempted", "low"), preempted),
        measure("slurmctld down for 5 s", run("uncontrolled"), without_controller),
        at_the_limit(run("limited", "brief", LIMIT_STEPS)),
        measure(f"node dies (silent for {NODE_TIMEOUT_S} s)", run("dead-node"), without_node),
    ]
    return found


def overheads(cluster: OneHostCluster, folder: Path) -> pd.DataFrame:
    """Seconds of a stage that does nothing, beyond those of its command alone."""
    environment = os.environ | cluster.variables
    site = folder / "overhead.yaml"
    site.write_text(SITE)
    rows = []
    direct = 0.0
    for executor in ("direct", "debug", "local", "slurm"):
        seconds = []
        for repeat in range(REPEATS):
            out = folder / f"{executor}-{repeat}"
            command = [sys.executable, "-c", f"open({str(out)!r}, 'w').close()"]
            if executor != "direct":
                launch = [sys.executable, "-m", "slurm.launch", "--executor", executor, "--site", str(site)]
                launch += ["--stage", "count", "--name", out.name, "--folder", str(folder / f"job-{out.name}")]
                command = [*launch, "--output", str(out), "--", *command]
            began = time.perf_counter()
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - began)
        median = statistics.median(seconds)
        direct = direct or median
        rows.append({"executor": executor, "seconds": round(median, 2), "overhead_s": round(median - direct, 2)})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slurm_events",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="write the events as Parquet")
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.count:
        count(args.count, args.steps)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = OneHostCluster(folder / "slurm", port=17_700, node_timeout_s=NODE_TIMEOUT_S)
        cluster.start()
        try:
            stages = overheads(cluster, folder)
            found = pd.DataFrame([asdict(event) for event in events(cluster, folder)])
        finally:
            cluster.stop()
    print(found.to_markdown(index=False), stages.to_markdown(index=False), sep="\n\n")
    if args.out:
        found.to_parquet(args.out)


if __name__ == "__main__":
    main()
