"""A real Slurm cluster on this machine, where it can be had; the tests that need it are skipped elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm.one_host import OneHostCluster, missing_programs

COUNTING = Path(__file__).with_name("counting_stage.py")
SITE = """\
signal_delay_s: 20
finish_step_s: 10
poll_s: 0.5
lost_after_s: 3
rendezvous_address: 127.0.0.1
stages:
  count: {time_min: 5, cpus_per_task: 1, memory_gb: 0.2}
  brief: {time_min: 1, cpus_per_task: 1, memory_gb: 0.2}
  low: {time_min: 5, cpus_per_task: 4, memory_gb: 0.2, partition: low}
  meet: {time_min: 5, cpus_per_task: 1, memory_gb: 0.5, nodes: 2, tasks_per_node: 2, gpus_per_node: 2}
"""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneHostCluster]:
    """Three nodes without accounting: sacct cannot be asked, as on many clusters."""
    missing = missing_programs(accounting=False)
    if missing or os.getuid() != 0:
        pytest.skip(
            f"needs root and Slurm ({', '.join(missing) or 'not root'}): `make test-slurm` installs it on Debian"
        )
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    found = OneHostCluster(tmp_path_factory.mktemp("slurm"), port=16_900 + 20 * worker)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(SITE)
    return path


@dataclass
class Stage:
    """A counting stage and the launchers that are started for it."""

    cluster: OneHostCluster
    repository: Path
    site: Path
    folder: Path
    stage: str = "count"
    executor: str = "slurm"

    @property
    def out(self) -> Path:
        return self.folder / "out.txt"

    @property
    def log(self) -> Path:
        return self.folder / "launcher.log"

    @property
    def job_name(self) -> str:
        return f"test-{self.folder.name}"

    def launch(self, *arguments: object, **variables: str) -> subprocess.Popen[bytes]:
        """Start a launcher in the background; what it prints goes to ``log``."""
        command = [sys.executable, "-m", "slurm.launch", "--executor", self.executor, "--site", str(self.site)]
        command += ["--stage", self.stage, "--name", self.job_name, "--folder", str(self.folder / "job")]
        command += ["--input", str(self.site), "--output", str(self.out), "--"]
        command += [sys.executable, str(COUNTING), "--out", str(self.out), *map(str, arguments)]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.repository,
                env=os.environ | self.cluster.variables | variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def jobs(self) -> list[str]:
        """Ids of this stage's jobs that Slurm still has to run or runs."""
        asked = self.slurm("squeue", "--noheader", "--states=PD,R,CG,S,CF", "--format=%A %j")
        return [line.split()[0] for line in asked.splitlines() if line.split()[1].startswith(self.job_name)]

    def slurm(self, program: str, *arguments: str) -> str:
        return subprocess.run(
            [program, *arguments],
            env=os.environ | self.cluster.variables,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    def steps(self) -> int:
        counts = self.out.with_name("out.txt.steps")
        return len(counts.read_text().split()) if counts.exists() else 0

    def await_steps(self, least: int, seconds: float = 60) -> None:
        await_that(lambda: self.steps() >= least, seconds, lambda: self.log.read_text())


def await_that(ready, seconds: float = 60, why=lambda: "") -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, why()
        time.sleep(0.1)


@pytest.fixture
def stage(cluster: OneHostCluster, repository: Path, site: Path, tmp_path: Path) -> Iterator[Stage]:
    """Afterwards no job of it is left."""
    found = Stage(cluster, repository, site, tmp_path)
    yield found
    deadline = time.monotonic() + 15  # a job ends a moment after its result is there
    while (left := found.jobs()) and time.monotonic() < deadline:
        time.sleep(0.2)
    for job in left:
        found.slurm("scancel", job)
    assert left == [], "a job was left behind"


def end(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float = 30) -> int:
    process.send_signal(number)
    return process.wait(seconds)
