"""A real Slurm cluster on this machine, where it can be had; the tests that need it are skipped elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched_stage import Stage

from slurm.one_host import OneHostCluster, missing_programs

MAX_ARRAY_SIZE = 6
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
    found = OneHostCluster(
        tmp_path_factory.mktemp("slurm"), port=free_ports(), node_timeout_s=6, max_array_size=MAX_ARRAY_SIZE
    )
    try:
        found.start()
        yield found
    except PermissionError as error:
        pytest.skip(f"a container without the right to make device nodes: {error}")
    finally:
        found.stop()


def free_ports() -> int:
    """The first of eight ports that nobody uses, sought from a place of this process's own."""
    for base in range(16_900 + 8 * (os.getpid() % 400), 32_000, 8):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + 8):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise RuntimeError("no eight free ports in a row below 32,000")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(SITE)
    return path


@pytest.fixture
def stage(cluster: OneHostCluster, repository: Path, site: Path, tmp_path: Path) -> Iterator[Stage]:
    """Afterwards no job and no process of it is left."""
    found = Stage(cluster, repository, site, tmp_path)
    yield found
    deadline = time.monotonic() + 120  # a job ends a moment after its result is there
    while (left := found.jobs() + found.processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    for job in found.jobs():
        found.slurm("scancel", job)
    assert left == [], "a job or a process was left behind"
