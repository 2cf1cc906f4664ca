"""A run of several processes: the same episodes, the same decisions, the same update up to the order of sums."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from small_experiments import assert_every_update_changed_the_weights
from stage_commands import StageProcess

from rised.config import ConfigError
from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader
from stages.attempts import STOPPED, read_attempts
from stages.ranks import Layout, Ranks

MOST_S = 240


class Job:
    """``python -m stages.train`` as the processes of one job on pretended nodes."""

    def __init__(self, experiment, repository: Path, out: Path, size: int, per_node: int, *extra: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = ["--config", experiment.config, "--method", "rised", "--seed", "0", "--tasks", experiment.tasks]
        words += ["--warm-start", experiment.warm_start, "--out", out, *extra]
        self.processes = []
        for rank in range(size):
            variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": per_node, "LOCAL_RANK": rank % per_node}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            self.processes.append(StageProcess("train", words, repository, **variables))

    def end(self, most_s: float = MOST_S) -> list[int]:
        """Exit codes, in rank order."""
        codes = [process.wait(most_s) for process in self.processes]
        self.outputs = [process.output() for process in self.processes]
        if set(codes) - {0, STOPPED}:
            print("\n".join(self.outputs))
        return codes


@pytest.fixture(scope="module")
def alone(learning_experiment, repository: Path, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    assert Job(learning_experiment, repository, run, 1, 1).end() == [0]
    assert_every_update_changed_the_weights(run, tiny_policy)
    return run


@pytest.fixture(scope="module")
def pair(learning_experiment, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes of one process, both of which play and learn."""
    run = tmp_path_factory.mktemp("pair") / "run"
    assert Job(learning_experiment, repository, run, 2, 1).end() == [0, 0]
    return run


def columns(run: Path, kind: str, step: int, names: Sequence[str]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = RunReader(run).scan(kind, steps=[step]).select(list(names)).to_pylist()
    return rows


EPISODE = ("rollout_id", "token_ids", "logprobs", "reward", "success")


def test_the_first_rollouts_are_the_same_to_the_last_bit(alone: Path, pair: Path) -> None:
    assert columns(pair, "rollouts", 1, EPISODE) == columns(alone, "rollouts", 1, EPISODE)
    assert columns(pair, "selections", 1, ("group_id", "order", "selected")) == columns(
        alone, "selections", 1, ("group_id", "order", "selected")
    )


def test_the_first_update_is_the_same_up_to_the_order_of_sums(alone: Path, pair: Path) -> None:
    mine, theirs = (
        {r["name"]: r["value"] for r in columns(run, "metrics", 1, ("name", "value"))} for run in (pair, alone)
    )
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert mine[name] == (None if value is None else pytest.approx(value, rel=1e-4, abs=1e-6)), name
    assert mine["trained_tokens"] > 0


def test_the_manifest_says_how_many_learned(alone: Path, pair: Path) -> None:
    assert RunReader(pair).manifest(1).extra["learner_ranks"] == 2
    assert "learner_ranks" not in RunReader(alone).manifest(1).extra


def test_nodes_that_only_play_give_the_run_of_fewer_learners(
    learning_experiment, repository: Path, alone: Path, tmp_path: Path
) -> None:
    """One node learns with one process, the other plays: the learner's sums are those of a run of one process."""
    codes = Job(learning_experiment, repository, tmp_path / "run", 2, 1, "--set", "placement.rollout_nodes=1").end()
    assert codes == [0, 0]
    split, single = (columns(run, "rollouts", 3, EPISODE) for run in (tmp_path / "run", alone))
    assert split == single, "after two updates the players still have the learner's weights to the last bit"


def await_file(path: Path) -> None:
    deadline = time.monotonic() + MOST_S
    while not path.is_file():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_that_is_stopped_and_then_loses_a_process_ends_in_the_same_bytes(
    learning_experiment, repository: Path, pair: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = Job(learning_experiment, repository, run, 2, 1)
    await_file(run / ".attempts.jsonl")
    for process in job.processes:
        process.send_signal(signal.SIGUSR2)  # only the first one heeds it
    assert job.end() == [STOPPED] * 2
    assert read_attempts(run).repeated_steps == 0

    job = Job(learning_experiment, repository, run, 2, 1)
    await_file(run / "manifests" / "step-000002.json")
    job.processes[1].send_signal(signal.SIGKILL)
    codes = job.end()
    assert codes[1] == -signal.SIGKILL and codes[0] != 0, "the driver does not wait for the dead"

    assert Job(learning_experiment, repository, run, 2, 1).end() == [0, 0]
    assert reproducible_digest(run) == reproducible_digest(pair)


def test_a_layout_that_leaves_nobody_to_learn_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"placement\.rollout_nodes is 2 in a job of 2 nodes"):
        Layout(4, 2, rollout_nodes=2)


def test_roles_follow_from_the_nodes() -> None:
    layout = Layout(size=8, per_node=2, rollout_nodes=3)
    assert layout.learners == (0, 1) and layout.players == (2, 3, 4, 5, 6, 7)
    ranks = Ranks.of_job(3, {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"})
    assert ranks.plays and not ranks.learns and not ranks.drives
    alone = Ranks.of_job(0, {})
    assert alone.plays and alone.learns and alone.drives
