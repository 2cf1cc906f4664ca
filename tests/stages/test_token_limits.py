"""A token limit that no episode can keep is refused, or told of: never a pass rate of 0 without a word."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from stage_commands import Command, assert_refused, in_process
from test_bad_input import train_arguments

from rised.config import ConfigError
from rised.models.engine import TransformersEngine
from rised.records.schemas import from_table
from rised.records.shards import RunReader
from rised.records.types import Rollout, StopReason, Turn
from rised.rollouts.rules import refuse_long_prompts
from rised.rollouts.settings import RolloutSettings
from stages.loop import probes, token_limit_warnings, validation_metrics

pytestmark = pytest.mark.usefixtures("at_the_root")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(monkeypatch, capsys)


@pytest.fixture
def no_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object, **__: object) -> None:
        raise AssertionError("something is generated")

    monkeypatch.setattr(TransformersEngine, "session", session)


def evaluate_arguments(tiny_experiment, out: Path, limit: int) -> list[object]:
    given = ["--config", tiny_experiment.config, "--tasks", tiny_experiment.tasks, "--out", out]
    return [*given, "--set", f"rollout.max_episode_tokens={limit}"]


@pytest.mark.usefixtures("no_generation")
def test_an_evaluation_without_room_for_a_reply_is_refused(tiny_experiment, command: Command, tmp_path: Path) -> None:
    outcome = command("evaluate", *evaluate_arguments(tiny_experiment, tmp_path / "out", 20))
    assert_refused(outcome, "rollout.max_episode_tokens is 20", "dbbench (prompt of ", "set it to ")
    assert RunReader(tmp_path / "out").steps() == []


@pytest.mark.usefixtures("no_generation")
def test_a_training_without_room_for_a_reply_is_refused(tiny_experiment, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = command("train", *train_arguments(tiny_experiment, out, "--set", "rollout.max_episode_tokens=20"))
    assert_refused(outcome, "rollout.max_episode_tokens is 20", "dbbench (prompt of ")
    assert RunReader(out).steps() == []


def test_an_evaluation_that_only_ends_by_the_limit_warns(tiny_experiment, command: Command, tmp_path: Path) -> None:
    refused = command("evaluate", *evaluate_arguments(tiny_experiment, tmp_path / "out", 20))
    found = re.search(r"prompt of (\d+) tokens", refused.err)
    assert found is not None
    outcome = command("evaluate", *evaluate_arguments(tiny_experiment, tmp_path / "out", int(found[1]) + 3))
    assert outcome.code == 0
    assert "warning: all 6 episodes of dbbench ended by the token limit" in outcome.err
    assert "rollout.max_episode_tokens (now " in outcome.err


def test_a_training_that_only_ends_by_the_limit_warns_once_a_step(
    tiny_experiment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import stages.train

    def cut(rollouts: list[Rollout], limit: int) -> list[str]:
        return token_limit_warnings([replace(r, stop_reason=StopReason.EPISODE_TOKEN_LIMIT) for r in rollouts], limit)

    monkeypatch.setattr(stages.train, "token_limit_warnings", cut)
    tiny_experiment.train(tmp_path / "run", "grpo_64", "updates=2")
    warnings = [line for line in capsys.readouterr().err.splitlines() if "ended by the token limit" in line]
    assert [line.split(" episodes")[0] for line in warnings] == [
        "warning: step 1, train: all 8",
        "warning: step 2, train: all 8",
        "warning: step 2, validation: all 6",
    ]


def test_the_environments_without_room_for_a_reply_are_named() -> None:
    limits = RolloutSettings(max_episode_tokens=60, max_new_tokens_per_turn={"a": 8, "b": 10, "c": 8, "d": 8})
    tokens = {"a": [70, 58], "b": [90, 59], "c": [58], "d": [400]}
    with pytest.raises(ConfigError, match=r"is 60, .* b \(prompt of 59 tokens\), d \(prompt of 400 tokens\): .* 409"):
        refuse_long_prompts(tokens, limits)
    refuse_long_prompts({"a": [70, 58], "c": [58]}, limits)


def test_tasks_to_measure_are_spread_over_each_panel() -> None:
    assert probes({"a": list(range(9)), "b": [7]}, {"a": list(range(100))}) == [0, 3, 6, 7, 0, 25, 50, 75]  # type: ignore[arg-type, list-item]


def test_a_warning_tells_cut_episodes_from_prompts_without_room() -> None:
    def ended(environment: str, reason: StopReason, turns: int) -> Rollout:
        turn = Turn("o", "a", "a", True, 0, 1, False)
        names = dict.fromkeys(("rollout_id", "run", "split", "task_id", "group_id", "system_prompt"), "x")
        return Rollout(
            **names,
            step=1,
            weight_version=0,
            environment=environment,
            rollout_index=0,
            seed=0,
            steering_rubrics=(),
            steering_text="",
            steering_text_hash="",
            turns=(turn,) * turns,
            final_observation="",
            token_ids=(1,) * 77,
            policy_mask=(False,) * 77,
            logprobs=(),
            reward=None,
            reward_valid=False,
            success=False,
            stop_reason=reason,
        )

    cut, done = StopReason.EPISODE_TOKEN_LIMIT, StopReason.ENVIRONMENT_DONE
    rollouts = [ended("a", cut, 1), ended("a", cut, 0), ended("b", cut, 0), ended("b", done, 1), ended("c", cut, 1)]
    first, second, third = token_limit_warnings([*rollouts, ended("d", cut, 1), ended("d", done, 1)], 60)
    assert first.startswith("all 2 episodes of a") and third.startswith("all 1 episodes of c")
    assert second.startswith("1 of 2 episodes of b had no room for a reply: their prompts have up to 77 tokens")


def test_ids_without_a_text_become_a_metric_where_there_are_any(tiny_experiment) -> None:
    stored: list[Rollout] = from_table(RunReader(tiny_experiment.warm_start).scan("validation"))
    rollouts = [replace(r, turns=tuple(replace(t, info={}) for t in r.turns)) for r in stored]
    assert not [m for m in validation_metrics(rollouts, 0) if "undecodable" in m.name]
    turn = replace(rollouts[0].turns[0], info={"undecodable_ids": 3})
    changed = [replace(rollouts[0], turns=(turn, *rollouts[0].turns[1:])), *rollouts[1:]]
    (metric,) = [m for m in validation_metrics(changed, 0) if "undecodable" in m.name]
    assert (metric.name, metric.value, metric.unit) == ("validation/undecodable_ids", 3.0, "count")
