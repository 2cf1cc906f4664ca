"""The plan of an experiment on a cluster: jobs, resources, device-hours, and which runs need the judge's server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.plan import Plan
from stages.grid import read_grid
from stages.judge_need import judge_need

pytestmark = pytest.mark.usefixtures("at_the_root")

METHODS = ("grpo_64", "grpo_128", "global_variance", "round_robin_variance", "all_rubric_sd", "rised")
DECIDE_BY_TAGS = {"all_rubric_sd", "rised"}


def dry_run(repository: Path, results: Path, experiment: str) -> str:
    command = [sys.executable, "-m", "snakemake", "-n", "--profile", "slurm", "--nolock", "--config"]
    command += [f"experiment={experiment}", f"results={results}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, cwd=repository, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("experiment", ["paper_qwen25_3b", "paper_qwen3_4b"])
def test_the_papers_grid_is_planned_with_its_resources_and_device_hours(
    repository: Path, tmp_path: Path, experiment: str
) -> None:
    text = dry_run(repository, tmp_path, experiment)
    assert len(re.findall(r"Train \w+, seed \d \[4 nodes x 8 tasks x 12 cores, 32 GPUs, 24:00 h", text)) == 18
    for method in METHODS:
        assert re.search(rf"train {method} +3 +3 +4 nodes", text)
    assert re.search(r"judge_server +1 +1 .* 8 ", text)
    found = re.search(r"About ([\d,]+) GPU-hours to do", text)
    assert found is not None
    total = int(found[1].replace(",", ""))
    steps_s = 3 * (155.5 + 249.6 + 179.1 + 177.3 + 2 * 252.9)  # Table 9, all_rubric_sd taken as rised
    training = 1000 * steps_s * 32 / 3600
    assert training < total < 1.1 * training


@pytest.mark.parametrize("experiment", ["paper_webshop_only", "paper_dbbench_only"])
def test_the_correlation_experiments_are_planned(repository: Path, tmp_path: Path, experiment: str) -> None:
    text = dry_run(repository, tmp_path, experiment)
    assert len(re.findall(r"Train grpo_64, seed 0 \[4 nodes", text)) == 1
    assert len(re.findall(r"Gradient signal of grpo_64, seed 0 \[12 cores, 1 GPUs", text)) == 1
    assert ("Second tags of grpo_64, seed 0" in text) == (experiment == "paper_webshop_only")
    assert "judge_server" in text, "validation is tagged, though the method needs no tags"


def test_what_is_done_is_not_counted_again(tmp_path: Path) -> None:
    options = {"experiment": "paper_qwen25_3b", "results": str(tmp_path), "executor": "slurm"}
    before = Plan.of(read_grid(options)).lines()
    for run in read_grid(options).finished_runs:
        if "rised" in run or "all_rubric_sd" in run:
            Path(run).parent.mkdir(parents=True)
            Path(run).touch()
    after = {line.name: line.to_do for line in Plan.of(read_grid(options)).lines()}
    assert {line.name: line.to_do for line in before}["train rised"] == 3
    assert after["train rised"] == after["train all_rubric_sd"] == after["judge_server"] == 0
    assert after["train grpo_64"] == 3


def test_without_a_cluster_there_is_no_plan() -> None:
    plan = Plan.of(read_grid({"experiment": "quickstart"}))
    assert plan.summary() == plan.note("train") == "" and plan.resources("train") == {}


def test_a_site_need_not_know_stages_that_nobody_asks_for(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("stages:\n  prepare: {}\n  evaluate: {}\n  train: {}\n")
    plan = Plan.of(read_grid({"experiment": "quickstart", "executor": "slurm", "site": str(site)}))
    assert plan.note("gradient") == "" and plan.resources("gradient") == {}
    assert "2 cores" in plan.note("train") and "train rised" in plan.summary()


@pytest.mark.parametrize("method", METHODS)
def test_a_judge_serves_the_methods_that_decide_by_tags(repository: Path, method: str) -> None:
    need = judge_need(repository / "configs/experiments/paper_qwen25_3b.yaml", method)
    assert (need is not None) == (method in DECIDE_BY_TAGS)
    if need is not None:
        assert need.endpoint == Path("results/services/qwen3_32b/endpoint.json")
        assert need.config == Path("configs/judges/qwen3_32b.yaml"), "so that experiments share the server"


def test_rules_and_fixed_addresses_need_no_server(repository: Path, tmp_path: Path) -> None:
    assert judge_need(repository / "configs/experiments/quickstart.yaml", "rised") is None
    remote = tmp_path / "remote.yaml"
    remote.write_text(
        f"extends: [{repository}/configs/experiments/paper_qwen25_3b.yaml]\n"
        "rubrics: {judge: {endpoint: 'https://judge.example/v1'}}\n"
    )
    assert judge_need(remote, "rised") is None


def test_a_judge_that_the_experiment_changes_is_its_own(repository: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: [{repository}/configs/experiments/paper_qwen25_3b.yaml]\njudge_server: {{replicas: 1}}\n")
    need = judge_need(own, "rised")
    assert need is not None and need.config.resolve() == own.resolve()
