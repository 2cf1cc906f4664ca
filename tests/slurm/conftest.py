"""A real Slurm cluster on this machine, where it can be had; the tests that need it are skipped elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched_stage import Stage

from slurm.one_host import OneHostCluster, missing_programs

SITE = """\
signal_delay_s: 20
finish_step_s: 10
poll_s: 0.5
lost_after_s: 3
service_linger_s: 4
rendezvous_address: 127.0.0.1
stages:
  count: {time_min: 5, cpus_per_task: 1, memory_gb: 0.2}
  brief: {time_min: 1, cpus_per_task: 1, memory_gb: 0.2}
  low: {time_min: 5, cpus_per_task: 4, memory_gb: 0.2, partition: low}
  server: {time_min: 5, cpus_per_task: 1, memory_gb: 0.2, gpus_per_node: 1}
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
    found = OneHostCluster(tmp_path_factory.mktemp("slurm"), port=16_900 + 20 * worker, node_timeout_s=6)
    try:
        found.start()
    except PermissionError as error:
        pytest.skip(f"a container without the right to make device nodes: {error}")
    yield found
    found.stop()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(SITE)
    return path


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
