"""Worker processes: same transcripts whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from countdown_environment import CountdownSettings, task

from rised.environments import discovery
from rised.environments.base import EnvironmentFault, StepResult
from rised.environments.pool import ENVIRONMENT_ERROR, EnvironmentPool, EpisodeFault

PLUGINS = ("countdown_environment",)
GUESSES = ["50", "25", "no digits", "75", "12", "88"]


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Any]:
    pools: list[EnvironmentPool] = []

    def make(worker_count: int = 2, **options: Any) -> EnvironmentPool:
        settings = CountdownSettings(diary=str(tmp_path))
        pools.append(EnvironmentPool({"countdown": settings}, worker_count, plugin_modules=PLUGINS, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def play(pool: EnvironmentPool, tasks: list[Any], disturb: Any = None) -> tuple[dict[int, Any], list[Any]]:
    """Play fixed guesses in all slots; returns first observations and every step's results."""
    first = pool.reset_many([(slot, each, each.seed) for slot, each in enumerate(tasks)])
    live = [slot for slot, observation in first.items() if isinstance(observation, str)]
    transcript = []
    for turn, guess in enumerate(GUESSES):
        if disturb is not None:
            disturb(turn)
        results = pool.step_many([(slot, guess) for slot in live])
        transcript.append(results)
        live = [slot for slot in live if not results[slot].done]
    return first, transcript


def test_a_killed_worker_leaves_the_same_transcript(make_pool: Any) -> None:
    tasks = [task(index // 2) for index in range(8)]
    expected = play(make_pool(2), tasks)
    pool = make_pool(2)

    def kill(turn: int) -> None:
        if turn in (1, 3):
            os.kill(pool.worker_pids[turn % 2], signal.SIGKILL)
            time.sleep(0.05)

    assert play(pool, tasks, kill) == expected
    assert pool.restarts == 2 and pool.faults == []


def test_a_worker_that_dies_in_a_step_is_replaced_and_the_step_repeated(make_pool: Any) -> None:
    tasks = [task(index) for index in range(4)]
    expected = play(make_pool(2), tasks)
    tasks[1] = task(1, {"kind": "kill", "turn": 3, "times": 2})
    pool = make_pool(2)
    assert play(pool, tasks) == expected
    assert pool.restarts == 2 and pool.faults == []


def test_the_number_of_workers_changes_nothing(make_pool: Any) -> None:
    tasks = [task(index // 3) for index in range(9)]
    assert play(make_pool(1), tasks) == play(make_pool(3), tasks)


def test_an_episode_lost_three_times_is_marked_and_the_others_go_on(make_pool: Any) -> None:
    tasks = [task(0), task(1, {"kind": "kill", "turn": 2, "times": 99}), task(2)]
    pool = make_pool(1)
    expected = play(make_pool(1), [task(0), task(0), task(2)])[1]
    _, transcript = play(pool, tasks)
    lost = transcript[1][1]
    assert lost.done and lost.stop == ENVIRONMENT_ERROR and lost.reward is None and lost.success is None
    assert [fault.task_id for fault in pool.faults] == ["number-1"]
    assert "signal 9" in pool.faults[0].reason
    for turn, results in enumerate(transcript):
        assert {slot: results[slot] for slot in (0, 2) if slot in results} == {
            slot: expected[turn][slot] for slot in (0, 2) if slot in expected[turn]
        }


def test_an_episode_that_cannot_be_reset_is_a_fault_not_an_observation(make_pool: Any) -> None:
    pool = make_pool(1)
    first, _ = play(pool, [task(0), task(1, {"kind": "raise", "turn": 0, "times": 99})])
    assert isinstance(first[0], str)
    assert isinstance(first[1], EpisodeFault)
    assert "number-1" in str(first[1]) and "engine broke" in str(first[1])


def test_an_exception_in_an_environment_is_retried_then_reported_with_its_task(make_pool: Any) -> None:
    pool = make_pool(1)
    once = play(pool, [task(3, {"kind": "raise", "turn": 2, "times": 1})])
    assert pool.faults == [] and pool.restarts == 0
    assert once == play(make_pool(1), [task(3)])
    _, always = play(pool, [task(4, {"kind": "raise", "turn": 2, "times": 99})])
    assert always[1][0].stop == ENVIRONMENT_ERROR
    assert "EnvironmentFault: engine broke in task number-4" in always[1][0].info["fault"]


def test_a_hanging_worker_is_replaced_after_the_timeout(make_pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(1)
    replace = pool.replace

    def patient_again(*arguments: Any, **options: Any) -> None:
        pool.timeout_s = 600.0
        replace(*arguments, **options)

    monkeypatch.setattr(pool, "replace", patient_again)
    tasks = [task(5, {"kind": "hang", "turn": 2, "times": 1}), task(6)]
    transcript = play(pool, tasks, lambda turn: setattr(pool, "timeout_s", 0.5 if turn == 1 else 600.0))
    assert pool.restarts == 1 and pool.faults == []
    assert transcript == play(make_pool(1), [task(5), task(6)])


def test_rollouts_of_one_task_share_a_worker_and_tasks_are_spread(make_pool: Any) -> None:
    pool = make_pool(2)
    pool.reset_many([(slot, task(slot // 4), 0) for slot in range(16)])
    homes = [pool._episodes[slot].worker for slot in range(16)]
    assert all(len(set(homes[i : i + 4])) == 1 for i in range(0, 16, 4))
    assert homes.count(0) == homes.count(1) == 8


def test_a_worker_is_recycled_only_when_it_holds_no_episode(make_pool: Any) -> None:
    pool = make_pool(1, recycle_after_episodes=3)
    before = pool.worker_pids
    pool.reset_many([(slot, task(slot), 0) for slot in range(4)])
    pool.release([0, 1, 2])
    assert pool.worker_pids == before
    pool.release([3])
    assert pool.worker_pids != before and pool.restarts == 0


def test_an_environment_that_changes_under_replay_is_given_up(make_pool: Any, monkeypatch: Any) -> None:
    pool = make_pool(1)
    pool.reset_many([(0, task(0), 0)])
    pool.step_many([(0, "50")])
    pool._episodes[0].observations[1] = "something else"
    os.kill(pool.worker_pids[0], signal.SIGKILL)
    time.sleep(0.05)
    result: StepResult = pool.step_many([(0, "20")])[0]
    assert result.stop == ENVIRONMENT_ERROR and "replay" in result.info["fault"]


def test_settings_that_an_environment_refuses_stop_at_once(tmp_path: Path) -> None:
    class Wrong(CountdownSettings):
        more: int = 1

    with pytest.raises(EnvironmentFault, match="more"):
        EnvironmentPool({"countdown": Wrong(diary=str(tmp_path))}, 1, plugin_modules=PLUGINS)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("refused", "countdown cannot be built: no engine here: install it"),
        (
            "absent",
            "countdown cannot be built: FileNotFoundError: [Errno 2] No such file or directory: '/nonexistent/engine'",
        ),
    ],
)
def test_an_expected_fault_of_a_worker_is_told_in_one_line(tmp_path: Path, broken: str, told: str) -> None:
    with EnvironmentPool({"countdown": CountdownSettings(broken=broken)}, 1, plugin_modules=PLUGINS) as pool:
        for attempt in (lambda: pool.system_prompt("countdown"), lambda: pool.reset_many([(0, task(0), 0)])):
            with pytest.raises(EnvironmentFault) as caught:
                attempt()
            assert str(caught.value) == told


def test_a_bug_in_a_worker_is_told_with_its_traceback(tmp_path: Path) -> None:
    with EnvironmentPool({"countdown": CountdownSettings(broken="bug")}, 1, plugin_modules=PLUGINS) as pool:
        with pytest.raises(EnvironmentFault, match="countdown cannot be built: AssertionError: a bug\nTraceback"):
            pool.system_prompt("countdown")


def test_an_unknown_environment_names_the_known_ones() -> None:
    with pytest.raises(EnvironmentFault, match="unknown environment 'nowhere'; known: .*countdown"):
        discovery.get("nowhere")


def test_a_step_without_an_episode_is_an_error(make_pool: Any) -> None:
    with pytest.raises(EnvironmentFault, match="slot 7, which holds no episode"):
        make_pool(1).step_many([(7, "1")])


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import json, time\n"
        "from rised.environments.pool import EnvironmentPool\n"
        "from countdown_environment import CountdownSettings\n"
        f"pool = EnvironmentPool({{'countdown': CountdownSettings()}}, 2, plugin_modules={PLUGINS!r})\n"
        "print(json.dumps(pool.worker_pids), flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    pids = json.loads(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and any(_alive(pid) for pid in pids):
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_a_worker_killed_while_idle_or_starting_is_replaced(make_pool: Any) -> None:
    pool = make_pool(1)
    os.kill(pool.worker_pids[0], signal.SIGKILL)
    assert pool.system_prompt("countdown").startswith("Guess")
    pool.reset_many([(0, task(0), 0)])
    os.kill(pool.worker_pids[0], signal.SIGKILL)
    pool.release([0])
    assert isinstance(pool.reset_many([(0, task(0), 0)])[0], str)
    assert pool.restarts == 2 and pool.faults == []
