"""Stages of the tests and the launchers that are started for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurm.one_host import OneHostCluster

HERE = Path(__file__).parent


@dataclass
class Stage:
    """A stage (of a program beside this file) and the launchers that are started for it."""

    cluster: OneHostCluster
    repository: Path
    site: Path
    folder: Path
    stage: str = "count"
    executor: str = "slurm"
    resumes: bool = True
    nohup: bool = False
    program: str = "counting_stage.py"
    options: tuple[str, ...] = ()
    """Further options of the launcher."""
    name: str = ""

    @property
    def out(self) -> Path:
        return self.folder / "out.txt"

    @property
    def log(self) -> Path:
        return self.folder / "launcher.log"

    @property
    def job_name(self) -> str:
        return self.name or f"test-{self.folder.name}"

    def command(self, *arguments: object) -> list[str]:
        """The launcher's words for the stage with these arguments."""
        command = [sys.executable, "-m", "slurm.launch", "--executor", self.executor, "--site", str(self.site)]
        command += ["--stage", self.stage, "--name", self.job_name, "--folder", str(self.folder / "job")]
        command += ["--resumes"] if self.resumes else []
        command += self.options
        command += ["--input", str(self.site), "--output", str(self.out), "--"]
        return [*command, sys.executable, str(HERE / self.program), "--out", str(self.out), *map(str, arguments)]

    def launch(self, *arguments: object, **variables: str) -> subprocess.Popen[bytes]:
        """Start a launcher in the background; what it prints goes to ``log``."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command(*arguments),
                cwd=self.repository,
                env=os.environ | self.cluster.variables | variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=ignore_hang_ups if self.nohup else heed_interrupts,
            )

    def processes(self) -> list[str]:
        """Command lines of processes that name this stage's folder."""
        asked = subprocess.run(["pgrep", "--full", "--list-full", str(self.folder)], capture_output=True, text=True)
        return asked.stdout.splitlines()

    def jobs(self) -> list[str]:
        """Ids of this stage's jobs that Slurm still has to run or runs."""
        asked = self.slurm("squeue", "--noheader", "--states=PD,R,CG,S,CF", "--format=%A %j")
        return [line.split()[0] for line in asked.splitlines() if line.split()[1].startswith(self.job_name)]

    def array(self) -> str:
        """Id of this stage's job array."""
        asked = self.slurm("squeue", "--noheader", "--format=%F %j")
        return next(line.split()[0] for line in asked.splitlines() if line.split()[1].startswith(self.job_name))

    def slurm(self, program: str, *arguments: str) -> str:
        return subprocess.run(
            [program, *arguments],
            env=os.environ | self.cluster.variables,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    def starts(self) -> int:
        """How often a job began to run the stage."""
        return (self.folder / "job" / "attempts.jsonl").read_text().count('"started"')

    def steps(self) -> int:
        counts = self.out.with_name("out.txt.steps")
        return len(counts.read_text().split()) if counts.exists() else 0

    def await_steps(self, least: int, seconds: float = 180) -> None:
        await_that(lambda: self.steps() >= least, seconds, lambda: self.log.read_text())


def heed_interrupts() -> None:
    """A shell makes what it starts in the background ignore SIGINT, and nohup SIGHUP, these tests among it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def ignore_hang_ups() -> None:
    """As nohup does."""
    heed_interrupts()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def await_that(ready: Callable[[], bool], seconds: float = 180, why: Callable[[], str] = lambda: "") -> None:
    """Wait until ``ready`` says so; fails with ``why`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, why()
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float = 180) -> int:
    """Send a signal and return the exit code."""
    process.send_signal(number)
    return process.wait(seconds)
