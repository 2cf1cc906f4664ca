"""The real train stage as a job: what interrupts it does not show in its result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched_stage import await_that

from rised.records.digest import reproducible_digest
from slurm.job_files import StageCall
from slurm.launcher import Executor, Launcher
from slurm.one_host import OneHostCluster
from slurm.site import load_site
from stages.attempts import read_attempts

UPDATES = 8
SITE = """\
signal_delay_s: 20
finish_step_s: 15
poll_s: 0.5
rendezvous_address: 127.0.0.1
stages:
  train: {{time_min: 5, cpus_per_task: {cores}, memory_gb: 3, nodes: {nodes}, tasks_per_node: {tasks}{partition}}}
"""


def call(tiny_experiment, run: Path) -> StageCall:
    command = [sys.executable, "-m", "stages.train", "--config", str(tiny_experiment.config), "--method", "rised"]
    command += ["--seed", "0", "--tasks", str(tiny_experiment.tasks), "--warm-start", str(tiny_experiment.warm_start)]
    command += ["--set", f"updates={UPDATES}", "--out", str(run)]
    return StageCall("tiny-train", "train", tuple(command), (str(tiny_experiment.tasks),), (str(run / "DONE"),))


def launch(
    tiny_experiment, folder: Path, executor: Executor, nodes: int = 1, tasks: int = 1, partition: str = ""
) -> Launcher:
    site = folder / "site.yaml"
    where = f", partition: {partition}" if partition else ""
    site.write_text(SITE.format(nodes=nodes, tasks=tasks, partition=where, cores=4 if partition else 2))
    return Launcher(call(tiny_experiment, folder / "run"), load_site(site), executor, folder / "job")


@pytest.fixture(scope="module")
def undisturbed(tiny_experiment, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digest of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        launch(tiny_experiment, folder, "debug").run()
    return reproducible_digest(folder / "run")


def interrupt(event: str, job: str) -> None:
    if event == "preempt":
        wish = ["sbatch", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"]
    else:
        wish = [*{"requeue": ["scontrol", "requeue"], "usr2": ["scancel", "--signal=USR2"]}[event], job]
    subprocess.run(wish, check=True, stdout=subprocess.DEVNULL)


def run_interrupted(launcher: Launcher, run: Path, event: str) -> None:
    """Bring a run about that an event meets after its second step."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            launcher.run()
            code = 0
        finally:
            os._exit(code)
    await_that((run / "manifests" / "step-000002.json").exists, 180)
    asked = subprocess.run(["squeue", "--noheader", "--format=%A %j"], capture_output=True, text=True, check=True)
    interrupt(event, next(line.split()[0] for line in asked.stdout.splitlines() if "tiny-train" in line))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def at_the_cluster(cluster: OneHostCluster, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param("requeue", marks=pytest.mark.slow),  # the run of two nodes is requeued in any case
        "usr2",
        pytest.param("preempt", marks=pytest.mark.slow),  # test_events preempts a job that counts
    ],
)
def test_an_interrupted_run_ends_in_the_same_bytes(
    tiny_experiment, at_the_cluster: None, undisturbed: dict[str, str], tmp_path: Path, event: str
) -> None:
    """``scontrol requeue`` may repeat the step in flight; USR2, which time limit and preemption send, none."""
    run = tmp_path / "run"
    partition = "low" if event == "preempt" else ""
    run_interrupted(launch(tiny_experiment, tmp_path, "slurm", partition=partition), run, event)
    assert reproducible_digest(run) == undisturbed
    found = read_attempts(run)
    assert found.starts == 2
    assert found.repeated_steps <= (1 if event == "requeue" else 0)


def test_a_run_of_two_nodes_that_is_requeued_ends_as_an_undisturbed_one_of_as_many_processes(
    tiny_experiment, at_the_cluster: None, tmp_path: Path
) -> None:
    """The undisturbed one: four processes of the local executor, without Slurm."""
    folders = [tmp_path / name for name in ("undisturbed", "requeued")]
    for folder in folders:
        folder.mkdir()
    launch(tiny_experiment, folders[0], "local", tasks=4).run()
    run_interrupted(launch(tiny_experiment, folders[1], "slurm", nodes=2, tasks=2), folders[1] / "run", "requeue")
    assert reproducible_digest(folders[1] / "run") == reproducible_digest(folders[0] / "run")
    assert read_attempts(folders[1] / "run").repeated_steps <= 1
