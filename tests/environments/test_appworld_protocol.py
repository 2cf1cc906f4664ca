"""AppWorld's processes from our side, against a scripted server: no engine is needed, and everything goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest

from rised.environments.appworld import world as world_module
from rised.environments.appworld.engine import Engine, Installation
from rised.environments.appworld.environment import AppworldEnvironment
from rised.environments.appworld.settings import AppworldSettings
from rised.environments.appworld.tasks import task_hash
from rised.environments.appworld.world import EpisodeFailed, Host, World
from rised.environments.base import EnvironmentFault, Task
from rised.environments.worker import Worker

SCRIPTED = Path(__file__).with_name("appworld_scripted_server.py")


def _gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that waits for its parent counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _soon(holds: Callable[[], bool], limit_s: float = 120.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("one", "two", "three"):
        task = tmp_path / "root" / "data" / "tasks" / name
        (task / "ground_truth").mkdir(parents=True)
        (task / "specs.json").write_text(f'{{"name": "{name}"}}')
        (task / "ground_truth" / "answer.json").write_text("42")
    return tmp_path / "root"


@pytest.fixture
def settings(root: Path) -> AppworldSettings:
    return AppworldSettings(
        python=sys.executable, root=str(root), kill_after_s=60.0, start_timeout_s=120.0, processes=2, isolate=False
    )


@pytest.fixture
def host(settings: AppworldSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    def scripted(python: Path, start_timeout_s: float) -> Engine:
        return Engine(python, start_timeout_s, script=SCRIPTED)

    monkeypatch.setattr(world_module, "Engine", scripted)
    host = world_module.acquire_host(settings)
    yield host
    world_module.release_host(host)


@contextmanager
def impatience(host: Host) -> Iterator[None]:
    """Code is given up after a second meanwhile; otherwise no test waits for a deadline."""
    patient = host.settings
    host.settings = patient.model_copy(update={"execute_timeout_s": 1, "kill_after_s": 0.2})
    yield
    host.settings = patient


def environment(settings: AppworldSettings, root: Path) -> tuple[AppworldEnvironment, Task]:
    made = AppworldEnvironment(settings)
    return made, Task("appworld", "train", "one", 0, {"task": "one"}, task_hash(root, "one"))


def test_a_world_answers_and_leaves_nothing_behind(host: Host) -> None:
    world = World(host, "one")
    folder = host.engine.folder
    assert world.execute("hello")["output"] == "hello"
    assert len(list(folder.glob("world-*"))) == 1
    world.close()
    assert not list(folder.glob("world-*"))
    host.close()
    assert not folder.exists()


def test_what_a_process_prints_never_mixes_with_its_answers(host: Host) -> None:
    world = World(host, "one")
    assert world.execute("print-junk")["output"] == "fine"
    assert world.execute("hello")["output"] == "hello"


CALL = {"app": "a", "api": "b", "method": "get", "status": 200, "unknown_parameters": [], "unseen_ids": []}
CALL |= {"needs_token": False, "has_token": False}


def forged(**changes: object) -> str:
    answer = {"output": "", "output_chars": 0, "error_type": None, "error": None, "calls": [], "call_count": 0}
    return "forge " + json.dumps({"ok": answer | {"completed": False} | changes})


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("exit", "ended without an answer"),
        ("segfault", "ended without an answer"),
        ("half-an-answer", "ended without an answer"),
        ("junk", "no answer: b'Traceback"),
        ("other-json", "no answer: b"),
        ("engine-error", "KeyError: 'x'"),
        ('forge {"ok": 5}', "no answer"),
        ('forge {"ok": {}}', "no answer: output"),
        ("forge " + "[" * 100_000, "no answer"),
        (forged(output=5), "output: .*not a string"),
        (forged(output_chars=-1), "output_chars"),
        (forged(call_count=10**40), "call_count"),
        (forged(completed="yes"), "completed"),
        (forged(calls=[CALL] * 65), "calls: .*at most 64"),
        (forged(calls=[{"app": "a"}]), "calls.0.api"),
        (forged(calls=[CALL | {"page_index": "1"}]), "calls.0.page_index"),
        (forged(reward=1.0), "reward"),
    ],
)
def test_code_that_breaks_its_process_fails_its_episode_with_a_reason_and_the_next_world_works(
    host: Host, word: str, reason: str
) -> None:
    with pytest.raises(EpisodeFailed, match=reason) as caught:
        World(host, "one").execute(word)
    assert caught.value.ended_by == "process_lost"
    assert World(host, "one").execute("hello")["output"] == "hello"


def test_an_answer_may_hold_any_text_and_every_field_of_a_call(host: Host) -> None:
    call = CALL | {"about_app": "\ud800", "count": 3}
    answer = World(host, "one").execute(forged(output="\ud800" * 3, output_chars=3, calls=[call]))
    assert (answer["output"], answer["calls"]) == ("\ud800" * 3, [call])


def test_an_output_is_never_longer_than_the_limit(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "settings", host.settings.model_copy(update={"output_limit_chars": 100}))
    assert World(host, "one").execute(forged(output="x" * 300))["output"] == "x" * 100


def test_an_endless_answer_is_cut_off_by_size(host: Host) -> None:
    with pytest.raises(EpisodeFailed, match="more than 1240000 bytes"):
        World(host, "one").execute("endless")


def test_a_death_that_the_machine_may_have_caused_is_a_fault_of_the_environment(host: Host) -> None:
    (host.engine.folder / "out-of-memory").touch()
    with pytest.raises(EnvironmentFault, match="ended without an answer"):
        World(host, "one").execute("exit")
    with pytest.raises(EnvironmentFault, match="lost together with the engine's process"):
        World(host, "one").execute("kill-the-engine")
    assert World(host, "one").execute("hello")["output"] == "hello"


@pytest.mark.parametrize(
    ("word", "ended_by", "reason"),
    [
        ("complete-with-broken-databases", "state_unreadable", "no such table"),
        ("complete-with-files-elsewhere", "process_lost", "should match pattern"),
        ("complete-without-databases", "process_lost", "no answer"),
        ("complete-and-hang", "process_lost", "did not answer"),
    ],
)
def test_databases_on_which_no_verdict_can_be_reached_fail_the_episode(
    host: Host, root: Path, word: str, ended_by: str, reason: str
) -> None:
    world = World(host, "one")
    world.execute(word)
    patience = impatience(host) if word.endswith("hang") else nullcontext()
    with patience, pytest.raises(EpisodeFailed, match=reason) as caught:
        world.verdict()
    assert caught.value.ended_by == ended_by
    assert host._open == [] and list(host.engine.folder.glob("world-*")) == []


def test_a_verdict_that_fails_on_the_tasks_own_databases_too_is_a_fault_of_the_environment(
    host: Host, root: Path
) -> None:
    (root / "data" / "broken").touch()
    world = World(host, "one")
    world.execute("complete")
    with pytest.raises(EnvironmentFault, match="no such table"):
        world.verdict()


@pytest.mark.parametrize("word", ["hang", "deaf-to-all-but-kill"])
def test_code_that_does_not_stop_is_killed_with_its_descendants(host: Host, word: str) -> None:
    world = World(host, "one")
    assert world._process is not None
    pid = world._process.pid
    with impatience(host), pytest.raises(EpisodeFailed, match="did not answer"):
        world.execute(word)
    assert _gone(pid)
    members = [p for p in os.listdir("/proc") if p.isdigit() and not _gone(int(p)) and _session(int(p)) == pid]
    assert members == []
    assert World(host, "one").execute("hello")["output"] == "hello"


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def test_a_process_that_died_between_two_turns_fails_its_episode(host: Host) -> None:
    world = World(host, "one")
    assert world.execute("die-afterwards")["output"] == "die-afterwards"
    assert world._process is not None
    pid = world._process.pid
    assert _soon(lambda: _gone(pid))
    with pytest.raises(EpisodeFailed, match="exit status 9|ended without an answer|is gone"):
        world.execute("hello")


def test_an_engine_that_died_between_two_episodes_is_started_again(host: Host) -> None:
    World(host, "one").close()
    old, folder = host.engine.pid, host.engine.folder
    os.kill(old, 9)
    assert _soon(lambda: not host.engine.alive or host.engine.pid != old)
    assert World(host, "one").execute("hello")["output"] == "hello"
    assert host.engine.pid != old
    assert not folder.exists()


def test_no_more_worlds_are_open_than_allowed_and_those_that_gave_way_go_on_as_if_nothing_had_happened(
    host: Host,
) -> None:
    worlds = [World(host, name) for name in ("one", "two", "three")]
    for turn in ("a", "b"):
        for world in worlds:
            assert world.execute(turn)["output"] == turn
            assert sum(other._process is not None for other in worlds) <= 2
    assert [world.history for world in worlds] == [["a", "b"]] * 3
    assert host.evictions > 0


def test_a_world_that_cannot_be_replayed_faithfully_is_a_fault(host: Host) -> None:
    world = World(host, "one")
    world.execute("count")
    world.suspend()
    with pytest.raises(EnvironmentFault, match="replay of the same code gave another output"):
        world.execute("hello")


def test_a_replay_that_hangs_is_a_fault_and_not_the_policys_failure(host: Host) -> None:
    world = World(host, "one")
    world.execute("hello")
    world.suspend()
    world.history[0] = "hang"
    with impatience(host), pytest.raises(EnvironmentFault, match="replay of the same code"):
        world.execute("hello")


def test_an_episode_that_is_given_back_holds_no_process(host: Host, settings: AppworldSettings, root: Path) -> None:
    worker = Worker()
    worker.handle({"op": "configure", "modules": [], "settings": {"appworld": settings.model_dump(mode="json")}})
    task = Task("appworld", "train", "one", 0, {"task": "one"}, task_hash(root, "one"))
    for slot in (0, 1):
        worker.handle({"op": "play", "slot": slot, "task": asdict(task), "seed": 0, "history": []})
    assert len(host._open) == 2
    worker.handle({"op": "release", "slots": [0]})
    assert len(host._open) == 1
    step = {"op": "play", "slot": 1, "action": "```python\nhello\n```"}
    assert b'"observation": "hello"' in worker.handle(step)
    for environment in [pair[1] for pair in worker._slots.values()] + worker._idle["appworld"]:
        environment.close()


def test_the_ground_truth_appears_for_the_verdict_only(host: Host) -> None:
    world = World(host, "one")
    world.execute("complete")
    assert world._workspace is not None
    task = world._workspace.folder / "data" / "tasks" / "one"
    assert sorted(path.name for path in task.iterdir()) == ["specs.json"]
    assert [path.name for path in task.parent.iterdir()] == ["one"]
    assert world.verdict()["success"] is True


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("crashes", "no module named appworld"),
        ("babbles", "no answer: b'hello'"),
        ("old", "has appworld 0.0.1, this project needs 0.1.3"),
    ],
)
def test_an_engine_that_does_not_start_says_why_and_what_to_do(tmp_path: Path, name: str, reason: str) -> None:
    script = tmp_path / f"{name}.py"
    shutil.copy(SCRIPTED, script)
    with pytest.raises(EnvironmentFault, match=reason) as caught:
        Engine(Path(sys.executable), 20.0, script=script)
    assert "make appworld" in str(caught.value)


def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="does not start in .*nowhere"):
        Engine(tmp_path / "nowhere", 5.0)


def test_what_is_missing_is_said_at_once_with_its_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPWORLD_ROOT", raising=False)
    monkeypatch.setenv("APPWORLD_PYTHON", str(tmp_path / "python"))
    with pytest.raises(EnvironmentFault) as caught:
        AppworldEnvironment(AppworldSettings())
    for part in (str(tmp_path / "python"), "make appworld", "APPWORLD_ROOT", "appworld download data"):
        assert part in str(caught.value)
    with pytest.raises(EnvironmentFault, match="data/tasks is missing"):
        Installation.find(AppworldSettings(python=sys.executable, root=str(tmp_path)))


def test_settings_come_before_variables(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path))
    monkeypatch.setenv("APPWORLD_PYTHON", str(tmp_path / "python"))
    found = Installation.find(AppworldSettings(python=sys.executable, root=str(root)))
    assert (found.python, found.root) == (Path(sys.executable), root.resolve())


def test_code_that_had_to_be_killed_ends_the_episode_as_a_failure_of_the_policy(
    host: Host, settings: AppworldSettings, root: Path
) -> None:
    made, task = environment(settings, root)
    made.reset(task, 0)
    with impatience(host):
        result = made.step("```python\nhang\n```")
    assert (result.done, result.reward, result.success, result.stop) == (True, 0.0, False, "environment_done")
    assert result.info["ended_by"] == "time_limit"
    with pytest.raises(EnvironmentFault, match="step before reset"):
        made.step("```python\nhello\n```")
    assert "do it" in made.reset(task, 0)
    made.close()


def test_code_that_ends_its_process_fails_the_episode_and_never_voids_its_reward(
    host: Host, settings: AppworldSettings, root: Path
) -> None:
    made, task = environment(settings, root)
    made.reset(task, 0)
    result = made.step("```python\nexit\n```")
    assert (result.done, result.reward, result.success, result.stop) == (True, 0.0, False, "environment_done")
    assert (result.info["ended_by"], result.info["completed"]) == ("process_lost", False)
    made.reset(task, 0)
    assert made.step("```python\ncomplete\n```").reward == 1.0
    made.close()


def test_databases_that_code_broke_fail_the_episode(host: Host, settings: AppworldSettings, root: Path) -> None:
    made, task = environment(settings, root)
    made.reset(task, 0)
    result = made.step("```python\ncomplete-with-broken-databases\n```")
    assert (result.done, result.reward, result.info["ended_by"]) == (True, 0.0, "state_unreadable")
    made.close()


def test_environments_of_one_process_share_an_engine_and_the_last_one_ends_it(
    host: Host, settings: AppworldSettings, root: Path
) -> None:
    first, task = environment(settings, root)
    second, _ = environment(settings, root)
    first.reset(task, 0)
    second.reset(task, 0)
    assert first._host is second._host is host
    assert first._world is not None and second._world is not None
    first.close()
    first.close()
    assert second.step("```python\nhello\n```").observation == "hello"
    second.close()


def test_data_that_changed_since_they_were_prepared_are_noticed(
    host: Host, settings: AppworldSettings, root: Path
) -> None:
    made, task = environment(settings, root)
    (root / "data" / "tasks" / "one" / "specs.json").write_text("{}")
    with pytest.raises(EnvironmentFault, match="not those that were prepared"):
        made.reset(task, 0)
    shutil.rmtree(root / "data" / "tasks" / "one")
    with pytest.raises(EnvironmentFault, match="'one' is not in"):
        made.reset(task, 0)
    made.close()


def test_a_system_that_allows_no_sandbox_is_refused_before_any_episode_with_the_way_out(
    settings: AppworldSettings, tmp_path: Path
) -> None:
    refusing = tmp_path / "python"
    refusing.write_text("#!/bin/sh\necho 'unshare: Operation not permitted'\nexit 1\n")
    refusing.chmod(0o755)
    with pytest.raises(EnvironmentFault, match="unshare: Operation not permitted.*settings.isolate: false"):
        AppworldEnvironment(settings.model_copy(update={"python": str(refusing), "isolate": True}))


def test_secrets_of_our_process_do_not_reach_the_engine(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    host.close()
    variables = Path(f"/proc/{host.engine.pid}/environ").read_bytes()
    assert b"secret" not in variables
    assert b"PYTHONHASHSEED=0" in variables
