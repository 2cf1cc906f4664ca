"""A whole run whose learner is DeepSpeed with sharded weights, by two processes, and gone on with by one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install 'rised[deepspeed]'")

from safetensors.torch import load_file
from test_ranks import EPISODE, Job, columns

from rised.records.commit import RunDirectory
from rised.records.digest import reproducible_digest
from rised.records.errors import RecordError
from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run, read_tasks, write_tasks
from stages.train import train

EXPERIMENT = """
extends: [{configs}/environments/dbbench.yaml]
experiment: sharded
environments:
  dbbench: {{train_tasks: 8, validation_tasks: 2}}
methods: [grpo_64]
method_scale: {{candidate_groups: 2, selected_groups: 2, kl: {{coefficient: 0.05}}}}
block_style: compact
model: {{path: {policy}}}
rollout:
  temperature: 1.0
  max_new_tokens_per_turn: {{dbbench: 44}}
  max_turns: {{dbbench: 4}}
  max_episode_tokens: 400
  environment_workers: 1
rollouts_per_group: 4
learner: {{learning_rate: 1.0e-3, threads: 1, gradient_share_every: 0}}
updates: 2
validation: {{every: 9}}
export_every: 1
"""
SHARDED = [
    *("--method", "grpo_64", "--set", "learner.type=deepspeed", "--set", "learner.zero_stage=3"),
    *("--set", "learner.layout=packed", "--set", "learner.reference=sharded"),
]


@dataclass(frozen=True)
class Experiment:
    """Paths of the experiment, as jobs want them, and of its run with the plain learner."""

    config: Path
    tasks: Path
    warm_start: Path
    plain: Path


@pytest.fixture(scope="module")
def experiment(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    folder = tmp_path_factory.mktemp("sharded_experiment")
    found = Experiment(folder / "sharded.yaml", folder / "tasks.parquet", folder / "warm_start", folder / "plain")
    policy = repository / "data" / "nano_policy"
    found.config.write_text(EXPERIMENT.format(configs=repository / "configs", policy=policy))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        settings = load_experiment(found.config)
        write_tasks(found.tasks, prepare_tasks(settings))
        tasks = read_tasks(found.tasks)
        evaluate(settings, tasks, found.warm_start)
        train(load_run(found.config, "grpo_64", 0), tasks, found.warm_start, found.plain)
    return found


@pytest.fixture(scope="module")
def run(experiment: Experiment, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates by two processes, a third one by a single process."""
    run = tmp_path_factory.mktemp("sharded") / "run"
    assert Job(experiment, repository, run, 2, 2, *SHARDED).end() == [0, 0]
    assert Job(experiment, repository, run, 1, 1, *SHARDED, "--set", "updates=3").end() == [0]
    return run


def values(run: Path, step: int) -> dict[str, float | None]:
    return {row["name"]: row["value"] for row in columns(run, "metrics", step, ("name", "value"))}  # type: ignore[misc]


def exported(run: Path, step: int) -> dict[str, object]:
    return load_file(run / "checkpoints" / f"step-00000{step}" / "model.safetensors")


def test_its_first_steps_are_the_plain_learners(run: Path, experiment: Experiment) -> None:
    assert columns(run, "rollouts", 1, EPISODE) == columns(experiment.plain, "rollouts", 1, EPISODE)
    for name in ("loss/total", "loss/rl", "gradient_norm", "trained_tokens"):
        assert values(run, 1)[name] == pytest.approx(values(experiment.plain, 1)[name], rel=1e-4, abs=1e-6), name
    assert values(run, 1)["gradient_norm"], "there is something to learn"
    mine, theirs = exported(run, 1), exported(experiment.plain, 1)
    assert mine.keys() == theirs.keys() and "lm_head.weight" in mine
    for name, expected in theirs.items():
        assert (mine[name] - expected).abs().mean() <= 1e-5, name  # type: ignore[attr-defined,operator]


def test_the_players_have_the_learners_weights_after_every_update(run: Path) -> None:
    """What the sampler said of its tokens is what the learner computes for them, also after the change of ranks."""
    for step in (1, 2, 3):
        assert values(run, step)["sampler_difference_max"] < 1e-3  # type: ignore[operator]
    later, earlier = exported(run, 3), exported(run, 2)
    assert max(float((later[name] - earlier[name]).abs().max()) for name in later) > 1e-4  # type: ignore[attr-defined,operator]


@pytest.mark.slow
def test_a_node_that_only_plays_stays_out_of_the_learners_group(
    run: Path, experiment: Experiment, repository: Path, tmp_path: Path
) -> None:
    """Two processes learn and a third one plays: the learners' sums are those of two that do both."""
    split = tmp_path / "run"
    assert Job(experiment, repository, split, 3, 1, *SHARDED, "--set", "placement.rollout_nodes=1").end() == [0, 0, 0]
    for step in (1, 2):
        assert columns(split, "rollouts", step, EPISODE) == columns(run, "rollouts", step, EPISODE)
    mine, theirs = exported(split, 2), exported(run, 2)
    assert all(bool((mine[name] == theirs[name]).all()) for name in theirs)  # type: ignore[attr-defined,operator]


@pytest.mark.slow
def test_a_lagged_run_that_was_stopped_plays_on_with_the_rounded_weights_that_played(
    experiment: Experiment, repository: Path, tmp_path: Path
) -> None:
    """Step 3 is played by version 1, of which only float32 masters are on disk when the run goes on after step 2."""
    lagged = [*SHARDED, "--set", "pipeline.lag=1", "--set", "method.policy_loss.truncated_importance=2.0"]
    lagged += ["--set", "learner.weights=bfloat16"]
    assert Job(experiment, repository, tmp_path / "whole", 2, 2, *lagged, "--set", "updates=3").end() == [0, 0]
    for updates in (2, 3):
        job = Job(experiment, repository, tmp_path / "parts", 2, 2, *lagged, "--set", f"updates={updates}")
        assert job.end() == [0, 0]
    whole, parts = (reproducible_digest(tmp_path / name) for name in ("whole", "parts"))
    for part in ("rollouts/", "state/", "checkpoints/"):
        names = {name for name in whole if name.startswith(part)}
        assert names and {name: parts[name] for name in names} == {name: whole[name] for name in names}
    assert values(tmp_path / "whole", 1)["sampler_k3"] < values(tmp_path / "whole", 3)["sampler_k3"]  # type: ignore[operator]


def test_a_torn_state_is_not_resumed_from(run: Path) -> None:
    state = run / "state" / "step-000003" / "optimizer.safetensors"
    data = state.read_bytes()
    try:
        state.write_bytes(data[:-8])
        with RunDirectory(run) as directory, pytest.raises(RecordError, match=r"optimizer\.safetensors"):
            directory.recover()
    finally:
        state.write_bytes(data)
