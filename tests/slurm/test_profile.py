"""`snakemake --profile slurm` on a real cluster gives what a direct run gives, also when Snakemake is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from launched_stage import await_that, heed_interrupts
from small_experiments import TINY

from rised.records.digest import reproducible_digest
from slurm.one_host import OneHostCluster
from slurm.status import read_status

SITE = """\
signal_delay_s: 60
finish_step_s: 50
poll_s: 0.5
lost_after_s: 3
stages:
  prepare: {time_min: 10, cpus_per_task: 2, memory_gb: 3}
  evaluate: {time_min: 10, cpus_per_task: 2, memory_gb: 3}
  train: {time_min: 10, cpus_per_task: 2, memory_gb: 3}
"""
EXPERIMENT = """\
extends: [tiny.yaml]
experiment: small
seeds: [0]
learner: {gradient_share_every: 0}
updates: 80  # enough for the runs to outlast the restart of Snakemake
validation: {every: 80}
analysis: {tables: [table2, learning], figures: [figure2]}
"""
SNAKEFILE = Path(__file__).resolve().parents[2] / "Snakefile"
RUNS = ("grpo_64/seed-0", "rised/seed-0")
MOST_S = 600


def snakemake(folder: Path, arguments: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE), *arguments],
        cwd=folder,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )


@pytest.fixture(scope="module")
def folder(repository: Path, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with an experiment of its own; all else is the checkout's."""
    folder = tmp_path_factory.mktemp("dag")
    experiments = folder / "configs" / "experiments"
    experiments.mkdir(parents=True)
    (experiments / "tiny.yaml").write_text(TINY.format(repository=repository, policy=tiny_policy))
    (experiments / "small.yaml").write_text(EXPERIMENT)
    (folder / "slurm").symlink_to(repository / "slurm")
    return folder


@pytest.fixture(scope="module")
def direct(folder: Path) -> Path:
    """Results of the experiment without a launcher."""
    results = folder / "direct"
    options = ["--cores", "2", "--nolock", "tables", "--config", "experiment=small", f"results={results}"]
    process = snakemake(folder, options)
    printed, _ = process.communicate(timeout=MOST_S)
    assert process.returncode == 0, printed.decode()[-3000:]
    return results / "small"


def test_the_dag_runs_as_jobs_and_survives_the_kill_of_snakemake(
    folder: Path, cluster: OneHostCluster, direct: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SITE)
    results = tmp_path / "my results"
    options = ["--profile", "slurm", "--nolock", "tables"]
    options += ["--config", "experiment=small", f"results={results}", f"site={site}"]
    first = snakemake(folder, options, **cluster.variables)
    manifest = results / "small" / RUNS[0] / "manifests" / "step-000001.json"
    await_that(manifest.exists, MOST_S, lambda: "no first step")
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    second = snakemake(folder, options, **cluster.variables)
    printed, _ = second.communicate(timeout=MOST_S)
    assert second.returncode == 0, printed.decode()[-3000:]
    for run in RUNS:
        assert reproducible_digest(results / "small" / run) == reproducible_digest(direct / run)
    for name in ("table2.csv", "learning.csv"):
        ours, theirs = (folder / "analysis" / "tables" / name for folder in (results / "small", direct))
        assert ours.read_text() == theirs.read_text()
    status = {stage.name: stage for stage in read_status(results / "small")}
    assert {stage.state for stage in status.values()} == {"done"}
    assert status["train-rised-seed-0"].step == "80/80"
    assert [status[name].starts for name in ("train-rised-seed-0", "train-grpo_64-seed-0")] == [1, 1]


def test_ctrl_c_of_snakemake_leaves_no_job(folder: Path, cluster: OneHostCluster, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SITE)
    options = ["--profile", "slurm", "--nolock", "data"]
    options += ["--config", "experiment=small", f"results={tmp_path}/results", f"site={site}"]
    process = snakemake(folder, options, **cluster.variables)

    def jobs() -> str:
        asked = subprocess.run(
            ["squeue", "--noheader", "--states=PD,R,CF", "--format=%j"],
            env=os.environ | cluster.variables,
            capture_output=True,
            text=True,
            check=True,
        )
        return " ".join(name for name in asked.stdout.split() if name.startswith("small-prepare"))

    await_that(lambda: jobs() != "", 180)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=240)
    assert process.returncode != 0
    await_that(lambda: jobs() == "", 180, jobs)


@pytest.mark.parametrize(("profile", "executor"), [("slurm", "slurm"), ("slurm/local", "local")])
def test_a_profile_chooses_the_executor_beside_any_config(
    repository: Path, tmp_path: Path, profile: str, executor: str
) -> None:
    options = ["-n", "-p", "--profile", profile, "--config", "experiment=smoke", f"results={tmp_path}"]
    printed, _ = snakemake(repository, options).communicate(timeout=240)
    assert printed.decode().count(f"slurm.launch --executor {executor}") == 4
