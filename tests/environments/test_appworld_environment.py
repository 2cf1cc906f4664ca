"""AppWorld on its real engine, in a small world of our own making (``appworld_world.py``)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rised.environments.appworld import SPEC, AppworldSettings
from rised.environments.appworld.engine import DEFAULT_PYTHON
from rised.environments.appworld.environment import AppworldEnvironment
from rised.environments.base import EnvironmentFault, StepResult, Task
from rised.environments.pool import EnvironmentPool
from rised.records.types import Rollout, StopReason, TagState, TagStatus, Turn
from rised.rubrics.judge_rules import RuleJudge
from rised.rubrics.vocabulary import load_vocabulary

BUILDER = Path(__file__).with_name("appworld_world.py")
LOGIN = """passwords = {p['account_name']: p['password'] for p in apis.supervisor.show_account_passwords()}
token = apis.simple_note.login(username='ada.field@example.com', password=passwords['simple_note'])['access_token']"""
CREATE = "print(apis.simple_note.create_note(access_token=token, title='Hello', content='World'))"
COUNT = """notes = []
for page in range(9):
    more = apis.simple_note.search_notes(access_token=token, page_index=page)
    notes += more
    if not more:
        break
print(len(notes))"""
DONE = "apis.supervisor.complete_task()"
CHANGE_TASK, QUESTION_TASK = "note01_1", "count2_1"

Limit = Callable[..., None]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> AppworldSettings:
    """The built world's settings; skips where the engine is not installed."""
    python = Path(os.environ.get("APPWORLD_PYTHON") or DEFAULT_PYTHON)
    if not os.access(python, os.X_OK):
        pytest.skip(f"AppWorld's engine is not installed ({python}): run `make appworld` or set APPWORLD_PYTHON")
    folder = tmp_path_factory.mktemp("appworld")
    done = subprocess.run(
        [str(python), str(BUILDER), str(folder / "root")],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = AppworldSettings(python=str(python), root=str(folder / "root"), execute_timeout_s=60)
    return made if namespaces_are_allowed() else made.model_copy(update={"isolate": False})


def namespaces_are_allowed() -> bool:
    """Whether this system lets a process leave the network and hide a folder."""
    unshare = shutil.which("unshare")
    own_users = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    command = [str(unshare), *own_users, "--mount", "--net", "mount", "-t", "tmpfs", "none", tempfile.gettempdir()]
    return unshare is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def shared(settings: AppworldSettings) -> Iterator[AppworldEnvironment]:
    """Keeps the engine loaded while the tests of this module run."""
    environment = AppworldEnvironment(settings)
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def tasks(shared: AppworldEnvironment, settings: AppworldSettings) -> dict[str, Task]:
    panels = [*SPEC.prepare(settings, "train", 4, 0), *SPEC.prepare(settings, "validation", 3, 0)]
    return {task.task_id: task for task in panels}


@pytest.fixture
def environment(shared: AppworldEnvironment, settings: AppworldSettings) -> Iterator[AppworldEnvironment]:
    made = AppworldEnvironment(settings)
    yield made
    made.close()


@pytest.fixture
def limit(shared: AppworldEnvironment, settings: AppworldSettings, monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Changes limits of the worlds that are opened next, in the engine that is loaded."""

    def change(**limits: float) -> None:
        monkeypatch.setattr(shared._host, "settings", settings.model_copy(update=limits))

    return change


def block(code: str) -> str:
    return f"```python\n{code}\n```"


def play(environment: AppworldEnvironment, task: Task, *codes: str) -> list[StepResult]:
    environment.reset(task, 0)
    return [environment.step(block(code)) for code in codes]


# ---- tasks


def test_panels_are_the_data_sets_in_their_order_by_difficulty(tasks: dict[str, Task]) -> None:
    train = [task.task_id for task in tasks.values() if task.split == "train"]
    assert train == ["note01_1", "note01_2", "count2_1", "count2_2"]
    assert [t.payload["difficulty"] for t in tasks.values()] == [1, 2, 1, 2, 1, 2, 3]
    assert len({task.content_hash for task in tasks.values()}) == len(tasks)


def test_a_task_row_holds_no_text_of_the_task(tasks: dict[str, Task]) -> None:
    for task in tasks.values():
        assert task.payload == {"task": task.task_id, "difficulty": task.payload["difficulty"]}


def test_a_part_of_a_panel_is_drawn_by_the_seed(settings: AppworldSettings, tasks: dict[str, Task]) -> None:
    drawn = [SPEC.prepare(settings, "train", 2, seed) for seed in (1, 1)]
    assert drawn[0] == drawn[1]
    assert {task.task_id for task in drawn[0]} <= set(tasks)


def test_asking_for_more_tasks_than_there_are_says_how_many_there_are(
    shared: AppworldEnvironment, settings: AppworldSettings
) -> None:
    with pytest.raises(EnvironmentFault, match="72 train tasks asked for.*has 4 of 1 or 2 difficulty.*train_tasks"):
        SPEC.prepare(settings, "train", 72, 0)


# ---- episodes


def test_a_change_is_made_over_several_turns_and_judged_by_the_engine(
    environment: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    first = environment.reset(tasks[CHANGE_TASK], 0)
    assert first.startswith(
        "Supervisor: Ada Field, e-mail ada.field@example.com, phone 5550101234\nTask: Create a note"
    )
    results = [environment.step(block(code)) for code in (LOGIN, CREATE, DONE)]
    assert [r.done for r in results] == [False, False, True]
    assert [r.observation for r in results][0] == "Execution successful."
    assert '"note_id": 8' in results[1].observation
    last = results[-1]
    assert (last.reward, last.success, last.stop, last.action_valid) == (1.0, True, "environment_done", True)
    assert (last.info["tests_passed"], last.info["tests_total"], last.info["tests_share"]) == (2, 2, 1.0)
    with pytest.raises(EnvironmentFault, match="step before reset, or after the end"):
        environment.step(block(DONE))


def test_a_question_is_answered_right_or_wrong(environment: AppworldEnvironment, tasks: dict[str, Task]) -> None:
    right = play(environment, tasks[QUESTION_TASK], LOGIN, COUNT, "apis.supervisor.complete_task(answer=len(notes))")
    assert (right[1].observation, right[-1].reward) == ("7", 1.0)
    (wrong,) = play(environment, tasks[QUESTION_TASK], "apis.supervisor.complete_task(answer=6)")
    assert (wrong.done, wrong.reward, wrong.success, wrong.info["tests_share"]) == (True, 0.0, False, 0.5)
    assert (wrong.info["missing_changes"], wrong.info["unwanted_changes"]) == (1, 0)


def test_an_unwanted_change_fails_the_task_and_is_told_apart(
    environment: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    last = play(environment, tasks[QUESTION_TASK], LOGIN, CREATE, "apis.supervisor.complete_task(answer=7)")[-1]
    assert (last.reward, last.info["missing_changes"], last.info["unwanted_changes"]) == (0.0, 0, 1)


def test_giving_up_is_logged_as_such(environment: AppworldEnvironment, tasks: dict[str, Task]) -> None:
    (last,) = play(environment, tasks[CHANGE_TASK], "apis.supervisor.complete_task(status='fail')")
    assert (last.done, last.success, last.info["calls"][-1]["claims"]) == (True, False, "fail")


def test_errors_come_back_as_text_and_the_episode_goes_on(
    environment: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    results = play(
        environment,
        tasks[CHANGE_TASK],
        "print(1 / 0)",
        "print(",
        "import subprocess",
        "open('x', 'w')",
        "apis.simple_note.make_note()",
        "apis.notebook.create()",
        "apis.simple_note.show_note(note_id=1)",
        "raise KeyboardInterrupt()",
        "raise SystemExit(3)",
        "print = 3",
        "builtins.print(2)",
    )
    assert [r.info["error_type"] for r in results] == [
        "ZeroDivisionError",
        "SyntaxError",
        "NotAllowed",
        "NotAllowed",
        "HTTPException",
        "HTTPException",
        "Exception",
        "KeyboardInterrupt",
        "Exception",
        None,
        None,
    ]
    assert not any(r.done for r in results)
    assert [r.action_valid for r in results] == [r.info["error_type"] is None for r in results]
    assert "ZeroDivisionError: division by zero" in results[0].observation
    assert [r.info["unknown_api"] for r in results[4:7]] == ["simple_note.make_note", "notebook", None]
    assert results[6].info["calls"][0]["status"] in (401, 422)
    assert results[-1].observation == "2"


def test_a_reply_without_code_changes_nothing(environment: AppworldEnvironment, tasks: dict[str, Task]) -> None:
    environment.reset(tasks[CHANGE_TASK], 0)
    result = environment.step("I will create the note now.")
    assert (result.done, result.action_valid, result.info["reply"]) == (False, False, "invalid")
    assert "no code block" in result.observation
    assert environment.step("print(5)").observation == "5"


def test_the_log_names_calls_parameters_tokens_pages_and_ids(
    environment: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    document, _, count, create, show, guess = play(
        environment,
        tasks[CHANGE_TASK],
        "print(apis.api_docs.show_api_doc(app_name='simple_note', api_name='login'))",
        LOGIN,
        COUNT,
        "note = apis.simple_note.create_note(access_token=token, title='x', content='y', colour=3)",
        "apis.simple_note.show_note(access_token=token, note_id=note['note_id'])",
        "apis.simple_note.show_note(access_token=token, note_id=999)",
    )
    assert document.info["task_values"] == ["Hello", "World"]
    assert (document.info["calls"][0]["about_app"], document.info["calls"][0]["about_api"]) == ("simple_note", "login")
    pages = [(c["page_index"], c["page_limit"], c["count"], c["method"]) for c in count.info["calls"]]
    assert pages == [(0, 5, 5, "get"), (1, 5, 2, "get"), (2, 5, 0, "get")]
    assert create.info["calls"][0]["unknown_parameters"] == ["colour"]
    assert (create.info["calls"][0]["method"], create.info["calls"][0]["needs_token"]) == ("post", True)
    assert (show.info["calls"][0]["unseen_ids"], guess.info["calls"][0]["unseen_ids"]) == ([], ["note_id"])
    assert guess.info["calls"][0]["status"] != 200


def test_many_calls_are_counted_and_the_first_and_latest_logged(
    environment: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    (result,) = play(
        environment,
        tasks[CHANGE_TASK],
        "for _ in range(99): apis.supervisor.show_profile()\napis.supervisor.show_addresses()",
    )
    assert (result.info["call_count"], len(result.info["calls"])) == (100, 64)
    assert result.info["calls"][-1]["api"] == "show_addresses"


def test_a_long_output_is_cut_with_a_mark(
    environment: AppworldEnvironment, limit: Limit, tasks: dict[str, Task]
) -> None:
    limit(output_limit_chars=100)
    (result,) = play(environment, tasks[CHANGE_TASK], "print('é' * 3_000_000)")
    assert result.observation == "é" * 100 + "\n[OUTPUT CUT: 100 of 3000001 characters shown]"
    assert result.info["output_cut"]


# ---- confinement


def test_code_that_runs_too_long_is_interrupted_and_the_episode_goes_on(
    environment: AppworldEnvironment, limit: Limit, tasks: dict[str, Task]
) -> None:
    limit(execute_timeout_s=2, kill_after_s=60.0)
    results = play(environment, tasks[CHANGE_TASK], "x = 1\nwhile True: pass", "print(x)")
    assert (results[0].info["error_type"], results[0].done) == ("TimeoutError", False)
    assert "timed out after 2 seconds" in results[0].observation
    assert results[1].observation == "1"


def test_code_that_ignores_its_interruption_is_killed(
    environment: AppworldEnvironment, limit: Limit, tasks: dict[str, Task]
) -> None:
    limit(execute_timeout_s=2, kill_after_s=1.0)
    spin = "def spin():\n    while True:\n        sum(range(1000))\n"
    stubborn = "while True:\n    try:\n        spin()\n    except BaseException:\n        pass"
    (result,) = play(environment, tasks[CHANGE_TASK], spin + stubborn)
    assert (result.done, result.reward, result.info.get("ended_by")) == (True, 0.0, "time_limit")


def test_memory_is_limited(environment: AppworldEnvironment, limit: Limit, tasks: dict[str, Task]) -> None:
    limit(memory_mb=512)
    results = play(environment, tasks[CHANGE_TASK], "x = 'a' * 10**10", "print(1)")
    assert [r.info["error_type"] for r in results] == ["MemoryError", None]


def test_code_that_breaks_its_own_process_is_a_fault_and_no_reward(
    environment: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    with pytest.raises(EnvironmentFault):
        play(environment, tasks[CHANGE_TASK], "import json\njson.dumps = None", DONE)
    assert play(environment, tasks[CHANGE_TASK], LOGIN, CREATE, DONE)[-1].reward == 1.0


def test_the_code_sees_no_variable_of_ours_and_no_ground_truth_where_it_usually_lies(
    environment: AppworldEnvironment, tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = "import os, pathlib\nroot = pathlib.Path(os.environ['APPWORLD_ROOT']) / 'data' / 'tasks'\n"
    look += "print(sorted(os.environ), sorted(p.relative_to(root).as_posix() for p in root.rglob('*')))"
    (result,) = play(environment, tasks[CHANGE_TASK], look)
    assert "KEY" not in result.observation and "TOKEN" not in result.observation
    assert "note01_1/specs.json" in result.observation
    assert "ground_truth" not in result.observation and "note01_2" not in result.observation


def test_the_code_reaches_neither_solutions_nor_the_network(
    environment: AppworldEnvironment, settings: AppworldSettings, tasks: dict[str, Task]
) -> None:
    if not settings.isolate:
        pytest.skip("this system allows no namespaces, so code is not isolated here")
    hunt = f"import pathlib\nroot = pathlib.Path('{settings.root}') / 'data'\n"
    hunt += "print([p.name for p in root.glob('*')], list((root / 'tasks').rglob('*')))"
    call_out = "socket = builtins.__import__('socket')\nsocket.create_connection(('127.0.0.1', 9), 2)"
    found, called = play(environment, tasks[CHANGE_TASK], hunt, call_out)
    assert "'base_dbs'" in found.observation and found.observation.endswith("[]")
    assert (called.info["error_type"], "unreachable" in called.observation) == ("OSError", True)


def test_a_verdict_is_out_of_reach_of_the_code_it_judges(
    environment: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    tamper = "import appworld.evaluator as e\ne.TestTracker.success = property(lambda self: True)\n"
    last = play(environment, tasks[CHANGE_TASK], tamper + DONE)[-1]
    assert (last.done, last.reward, last.info["tests_passed"]) == (True, 0.0, 1)


def test_nothing_of_an_episode_is_left_to_the_next(environment: AppworldEnvironment, tasks: dict[str, Task]) -> None:
    play(environment, tasks[CHANGE_TASK], LOGIN, CREATE, "builtins.leftover = 1")
    results = play(environment, tasks[CHANGE_TASK], "print(token)", "print(builtins.leftover)", LOGIN, COUNT)
    assert [r.info["error_type"] for r in results] == ["NameError", "AttributeError", None, None]
    assert results[-1].observation == "7"


def test_equal_actions_give_equal_transcripts(
    environment: AppworldEnvironment, shared: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    codes = [LOGIN, "print(token)", COUNT, "import random, datetime; print(random.random(), datetime.datetime.now())"]
    transcripts = [play(e, tasks[QUESTION_TASK], *codes) for e in (environment, shared)]
    assert transcripts[0] == transcripts[1]
    assert "2023-05-18" in transcripts[0][-1].observation


def test_there_is_no_expert_and_it_says_so(environment: AppworldEnvironment) -> None:
    with pytest.raises(EnvironmentFault, match="no expert"):
        environment.expert(0, 0.0)


# ---- tags of real episodes


def recorded(environment: AppworldEnvironment, task: Task, *replies: str) -> Rollout:
    """A synthetic rollout: the replies played on the engine."""
    observation = environment.reset(task, 0)
    turns, last = [], None
    for reply in replies:
        last = environment.step(reply)
        turns.append(Turn(observation, reply, last.action_mapped, last.action_valid, 0, 0, False, last.info))
        observation = last.observation
    assert last is not None
    return Rollout(
        rollout_id="r", run="synthetic", step=0, weight_version=0, split="train", environment="appworld",
        task_id=task.task_id, group_id="g", rollout_index=0, seed=0, system_prompt="", steering_rubrics=(),
        steering_text="", steering_text_hash="", turns=tuple(turns), final_observation=observation, token_ids=(),
        policy_mask=(), logprobs=(), reward=last.reward, reward_valid=last.reward is not None, success=last.success,
        stop_reason=StopReason(last.stop or "turn_limit"),
    )  # fmt: skip


def test_detectors_read_real_logs(environment: AppworldEnvironment, tasks: dict[str, Task]) -> None:
    look = "for api in ('login', 'search_notes', 'create_note', 'show_note'):\n"
    look += "    print(apis.api_docs.show_api_doc(app_name='simple_note', api_name=api))"
    create = "note = apis.simple_note.create_note(access_token=token, title='Hello', content='World')"
    check = "print(apis.simple_note.show_note(access_token=token, note_id=note['note_id']))"
    good = recorded(environment, tasks[CHANGE_TASK], *map(block, (look, LOGIN, COUNT, create, check, DONE)))
    bad = recorded(
        environment,
        tasks[CHANGE_TASK],
        "Let me think.",
        block("apis.simple_note.make_note()"),
        block("apis.simple_note.make_note()") + "\nOutput: done",
        block("apis.simple_note.show_note(note_id=77)"),
        block(DONE),
    )
    tags = RuleJudge(load_vocabulary()).tag([good, bad])
    assert [tag.reason for tag in tags if tag.status is not TagStatus.OK] == []
    half = len(tags) // 2
    assert {tag.rubric_id for tag in tags[:half] if tag.state is TagState.VIOLATES} == set()
    assert {tag.rubric_id: tag.evidence_turn for tag in tags[:half] if tag.state is TagState.DEMONSTRATES} == {
        "uses_exact_values_from_task": 3,
        "inspects_api_response_before_use": 2,
        "finishes_without_detour": 5,
        "uses_valid_action_format": 5,
        "verifies_modification_result": 4,
        "reads_api_documentation_before_call": 1,
        "handles_pagination": 2,
        "obtains_access_token_before_call": 2,
    }
    assert {tag.rubric_id: tag.evidence_turn for tag in tags[half:] if tag.state is TagState.VIOLATES} == {
        "repeats_failed_action": 2,
        "abandons_task_after_error": 4,
        "ignores_task_constraint": 4,
        "refers_to_unobserved_entity": 3,
        "hallucinates_observation": 2,
        "commits_too_early": 4,
        "malformed_action": 0,
        "claims_false_completion": 4,
        "reads_api_documentation_before_call": 3,
        "hallucinates_api": 1,
        "obtains_access_token_before_call": 3,
    }


# ---- in the pool


def test_episodes_in_the_pool_share_worlds_by_turns_survive_a_dead_worker_and_leave_nothing(
    settings: AppworldSettings, tasks: dict[str, Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    narrow = settings.model_copy(update={"processes": 1})
    with EnvironmentPool({"appworld": narrow}, 1) as pool:
        assert "apis.supervisor.complete_task" in pool.system_prompt("appworld")
        assert pool.max_turns == {"appworld": 50}
        slots = {0: tasks[CHANGE_TASK], 1: replace(tasks[QUESTION_TASK])}
        pool.reset_many([(slot, task, 0) for slot, task in slots.items()])
        pool.step_many([(slot, block(LOGIN)) for slot in slots])
        os.kill(pool.worker_pids[0], 9)
        seen = pool.step_many([(0, block(CREATE)), (1, block(COUNT))])
        assert ('"note_id": 8' in seen[0].observation, seen[1].observation) == (True, "7")
        last = pool.step_many([(0, block(DONE)), (1, block("apis.supervisor.complete_task(answer=len(notes))"))])
        assert [last[slot].reward for slot in slots] == [1.0, 1.0]
        assert pool.faults == []
    deadline = time.monotonic() + 120
    while list(tmp_path.glob("appworld-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(tmp_path.glob("appworld-*")) == []


def test_data_that_are_missing_stop_a_pool_at_once(settings: AppworldSettings, tmp_path: Path) -> None:
    with EnvironmentPool({"appworld": settings.model_copy(update={"root": str(tmp_path)})}, 1) as pool:
        with pytest.raises(EnvironmentFault, match="appworld download data"):
            pool.system_prompt("appworld")
