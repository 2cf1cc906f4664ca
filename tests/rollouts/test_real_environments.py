"""The episode loop on the real environments that need no download: the same rollouts with other and dying workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted_engine import ScriptedEngine, ScriptedSession
from tiny_models import tokenizer

from rised.config import Settings
from rised.environments import discovery
from rised.environments.base import Task
from rised.environments.pool import EnvironmentPool
from rised.models.rendering import ChatRendering
from rised.records.types import Rollout
from rised.rollouts.episodes import CollectionRequest, collect_rollouts
from rised.rollouts.plans import EpisodePlan
from rised.rollouts.settings import RolloutSettings

NAMES = ("alfworld", "webshop", "dbbench", "mapf_frozenlake")
RENDERING = ChatRendering(tokenizer("nano"))
LIMITS = RolloutSettings(
    max_new_tokens_per_turn=400, max_turns=dict.fromkeys(NAMES, 6), max_episode_tokens=8000, environment_workers=1
)
SMALL = {"webshop": {"product_count": 260}}


class Replay(ScriptedEngine):
    """One script per cohort, in the order of the cohorts."""

    def __init__(self, scripts: Sequence[list[list[list[int]]]]) -> None:
        super().__init__([], RENDERING.end_token_id)
        self.scripts = list(scripts)

    def session(self, row_count: int, temperature: float = 1.0) -> ScriptedSession:
        self.replies = self.scripts.pop(0)
        own = ScriptedEngine(self.replies, self.end_token_id)
        return ScriptedSession(own, row_count)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Settings]:
    made = {}
    for name in NAMES:
        kind = discovery.get(name).settings_type
        values = {"prompt_style": "compact", **SMALL.get(name, {})}
        if "cache_dir" in kind.model_fields:  # type: ignore[attr-defined]
            values["cache_dir"] = str(tmp_path_factory.mktemp(f"{name}-cache"))
        made[name] = kind(**values)
    return made


@pytest.fixture(scope="module")
def scripts(settings: dict[str, Settings]) -> dict[str, list[tuple[Task, list[str]]]]:
    """Per environment two tasks, each with the expert's actions and some wrong ones."""
    played: dict[str, list[tuple[Task, list[str]]]] = {}
    for name in NAMES:
        spec = discovery.get(name)
        tasks = spec.prepare(settings[name], "train", 2, 0)
        environment = spec.make(settings[name])
        for task in tasks:
            environment.reset(task, task.seed)
            actions = []
            for action in environment.expert(task.seed, 0.3):
                actions.append(action)
                if environment.step(action).done or len(actions) == LIMITS.max_turns[name]:
                    break
            played.setdefault(name, []).append((task, actions))
        environment.close()
    return played


def play(
    settings: dict[str, Settings], scripts: dict[str, list[tuple[Task, list[str]]]], workers: int, kills: int = 0
) -> list[Rollout]:
    plans = [
        EpisodePlan(task, "train", 1, f"{name}-{group}", rollout, "run", 0, 0)
        for name in NAMES
        for group, (task, _) in enumerate(scripts[name])
        for rollout in range(2)
    ]
    cohorts = []
    for name in NAMES:
        rows = []
        for _, actions in scripts[name]:
            replies = [RENDERING._encode(action) + [RENDERING.end_token_id] for action in actions]
            rows += [replies + [replies[-1]] * LIMITS.max_turns[name]] * 2
        cohorts.append(rows)
    left = [kills]
    with EnvironmentPool(settings, workers) as pool:

        def kill(finished: int, total: int) -> None:
            if left[0]:
                left[0] -= 1
                os.kill(pool.worker_pids[left[0] % workers], signal.SIGKILL)

        request = CollectionRequest(plans, RENDERING, pool, LIMITS, on_progress=kill)
        rollouts = collect_rollouts(Replay(cohorts), request)
        assert pool.restarts == kills and pool.faults == []
    return rollouts


def test_more_workers_and_killed_workers_change_nothing(
    settings: dict[str, Settings], scripts: dict[str, list[tuple[Task, list[str]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    reference = play(settings, scripts, workers=1)
    assert [rollout.environment for rollout in reference[::4]] == list(NAMES)
    assert any(rollout.success for rollout in reference)
    assert play(settings, scripts, workers=2, kills=2) == reference
