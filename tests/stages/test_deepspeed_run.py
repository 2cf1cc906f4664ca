"""A whole run whose learner is DeepSpeed with sharded weights, by two processes, and gone on with by one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install 'rised[deepspeed]'")

from safetensors.torch import load_file
from test_ranks import EPISODE, Job, columns

from rised.records.commit import RunDirectory
from rised.records.errors import RecordError

SHARDED = [
    *("--method", "grpo_64", "--set", "learner.type=deepspeed", "--set", "learner.zero_stage=3"),
    *("--set", "learner.layout=packed", "--set", "learner.reference=sharded", "--set", "export_every=1"),
    *("--set", "validation.every=9", "--set", "validation.tags=false"),
]
SHORT = [*SHARDED, "--set", "updates=2"]


@pytest.fixture(scope="module")
def run(single_source, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates by two processes, a third one by a single process."""
    run = tmp_path_factory.mktemp("sharded") / "run"
    assert Job(single_source, repository, run, 2, 2, *SHORT).end() == [0, 0]
    assert Job(single_source, repository, run, 1, 1, *SHARDED).end() == [0]
    return run


def values(run: Path, step: int) -> dict[str, float | None]:
    return {row["name"]: row["value"] for row in columns(run, "metrics", step, ("name", "value"))}  # type: ignore[misc]


def test_its_first_steps_are_the_plain_learners(run: Path, single_source) -> None:
    plain = single_source.run
    assert columns(run, "rollouts", 1, EPISODE) == columns(plain, "rollouts", 1, EPISODE)
    names = ("loss/total", "loss/rl", "gradient_norm", "trained_tokens")
    for name in names:
        assert values(run, 1)[name] == pytest.approx(values(plain, 1)[name], rel=1e-4, abs=1e-6), name
    assert values(run, 1)["gradient_norm"], "there is something to learn"
    mine, theirs = (load_file(r / "checkpoints" / "step-000002" / "model.safetensors") for r in (run, plain))
    for name, expected in theirs.items():
        assert (mine[name] - expected).abs().max() <= 5e-4, name
    assert (mine["lm_head.weight"] == mine["model.embed_tokens.weight"]).all()


def test_the_players_have_the_learners_weights_after_every_update(run: Path) -> None:
    """What the sampler said of its tokens is what the learner computes for them, also after the change of ranks."""
    for step in (1, 2, 3):
        assert values(run, step)["sampler_difference_max"] < 1e-3  # type: ignore[operator]
    later, earlier = (load_file(run / "checkpoints" / f"step-00000{n}" / "model.safetensors") for n in (3, 2))
    assert max(float((later[name] - earlier[name]).abs().max()) for name in later) > 1e-4


def test_a_torn_state_is_not_resumed_from(run: Path) -> None:
    state = run / "state" / "step-000003" / "optimizer.safetensors"
    data = state.read_bytes()
    try:
        state.write_bytes(data[:-8])
        with RunDirectory(run) as directory, pytest.raises(RecordError, match=r"optimizer\.safetensors"):
            directory.recover()
    finally:
        state.write_bytes(data)
