"""The site file: what is in it reaches the batch script, and what is wrong in it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from rised.config import ConfigError
from slurm.job_files import StageCall
from slurm.launcher import Launcher
from slurm.site import executor_parameters, load_site

STAGES = ("prepare", "evaluate", "train", "gradient", "retag", "judge_server", "nano_policy")


def test_every_shipped_site_has_resources_for_every_stage_of_the_dag(repository: Path) -> None:
    sites = [repository / "slurm" / "site.yaml", *sorted((repository / "slurm" / "sites").glob("*.yaml"))]
    assert len(sites) == 3
    for path in sites:
        for stage in STAGES:
            assert executor_parameters(load_site(path), stage, "name")["timeout_min"] > 0


def test_what_the_user_sets_reaches_the_parameters(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(
        "account: mine\npartition: gpu\ngpu_type: h100\nsbatch: {mail-type: FAIL}\n"
        "stages:\n  train: {time_min: 90, gpus_per_node: 4, partition: long, memory_gb: null}\n"
    )
    parameters = executor_parameters(load_site(path), "train", "name")
    assert parameters["slurm_account"] == "mine"
    assert parameters["slurm_partition"] == "long"
    assert parameters["timeout_min"] == 90
    assert "mem_gb" not in parameters
    assert parameters["slurm_additional_parameters"] == {"requeue": True, "mail-type": "FAIL", "gres": "gpu:h100:4"}


def test_a_misspelt_key_is_answered_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("stages:\n  train: {time_mins: 90}\n")
    with pytest.raises(ConfigError, match="time_mins.*did you mean 'time_min'"):
        load_site(path)


def test_a_stage_without_resources_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("stages:\n  train: {}\n")
    with pytest.raises(ConfigError, match="'trains'; did you mean 'train'"):
        executor_parameters(load_site(path), "trains", "name")


def test_a_dry_run_writes_the_batch_script(site: Path, tmp_path: Path, cluster) -> None:
    call = StageCall("count", "meet", ("python", "count.py"), (), ())
    script = Launcher(call, load_site(site), "slurm", tmp_path / "job").script()
    for line in ("#SBATCH --nodes=2", "#SBATCH --gres=gpu:2", "#SBATCH --signal=USR2@20", "#SBATCH --requeue"):
        assert line in script
    assert not (tmp_path / "job" / "job.json").exists()


def test_an_experiments_resources_go_before_the_sites(tmp_path: Path) -> None:
    site, experiment = tmp_path / "site.yaml", tmp_path / "experiment.yaml"
    site.write_text("stages:\n  train: {time_min: 90, cpus_per_task: 2}\n")
    experiment.write_text("experiment: x\nresources:\n  train: {nodes: 4, cpus_per_task: 12}\n  judge_server: {}\n")
    found = load_site(site, experiment=experiment)
    train = found.resources("train")
    assert (train.nodes, train.cpus_per_task, train.time_min) == (4, 12, 90)
    assert found.resources("judge_server").nodes == 1
    experiment.write_text("experiment: x\nresources:\n  train: {node: 4}\n")
    with pytest.raises(ConfigError, match=r"experiment\.yaml.*node.*did you mean 'nodes'"):
        load_site(site, experiment=experiment)
