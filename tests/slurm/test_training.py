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
stages:
  train: {time_min: 5, cpus_per_task: 2, memory_gb: 3}
"""


def call(tiny_experiment, run: Path) -> StageCall:
    command = [sys.executable, "-m", "stages.train", "--config", str(tiny_experiment.config), "--method", "rised"]
    command += ["--seed", "0", "--tasks", str(tiny_experiment.tasks), "--warm-start", str(tiny_experiment.warm_start)]
    command += ["--set", f"updates={UPDATES}", "--out", str(run)]
    return StageCall("tiny-train", "train", tuple(command), (str(tiny_experiment.tasks),), (str(run / "DONE"),))


def launch(tiny_experiment, folder: Path, executor: Executor) -> Launcher:
    site = folder / "site.yaml"
    site.write_text(SITE)
    return Launcher(call(tiny_experiment, folder / "run"), load_site(site), executor, folder / "job")


@pytest.fixture(scope="module")
def undisturbed(tiny_experiment, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digest of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        launch(tiny_experiment, folder, "debug").run()
    return reproducible_digest(folder / "run")


@pytest.mark.parametrize("event", ["requeue", "usr2"])
def test_an_interrupted_run_ends_in_the_same_bytes(
    tiny_experiment,
    repository: Path,
    cluster: OneHostCluster,
    undisturbed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    event: str,
) -> None:
    """``scontrol requeue`` may repeat the step in flight; USR2, which a time limit and a preemption send, none."""
    monkeypatch.chdir(repository)
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    interrupt = ["scontrol", "requeue"] if event == "requeue" else ["scancel", "--signal=USR2"]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            launch(tiny_experiment, tmp_path, "slurm").run()
            code = 0
        finally:
            os._exit(code)
    await_that((run / "manifests" / "step-000002.json").exists, 120)
    asked = subprocess.run(["squeue", "--noheader", "--format=%A %j"], capture_output=True, text=True, check=True)
    job = next(line.split()[0] for line in asked.stdout.splitlines() if "tiny-train" in line)
    subprocess.run([*interrupt, job], check=True)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reproducible_digest(run) == undisturbed
    found = read_attempts(run)
    assert found.starts == 2
    assert found.repeated_steps == 0 if event == "usr2" else found.repeated_steps <= 1
