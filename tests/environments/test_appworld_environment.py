"""AppWorld on its real engine, in a small world of our own making (``appworld_world.py``)."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rised.environments.appworld import SPEC, AppworldSettings
from rised.environments.appworld.engine import DEFAULT_PYTHON, SANDBOX, Installation
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
    made = AppworldSettings(python=str(python), root=str(folder / "root"), execute_timeout_s=60, start_timeout_s=600.0)
    try:
        Installation.find(made).check_sandbox(600.0)
    except EnvironmentFault:
        return made.model_copy(update={"isolate": False})
    return made


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


@pytest.mark.parametrize(
    "code",
    [
        "import json\njson.dumps = None",
        "posix._exit(0)",
        "posix.closerange(0, 1000)",
        "[posix.write(n, b'{\"ok\": 1}\\n') for n in sockets]",
        "[posix.write(n, bytes(300)) for n in sockets]",
        "limit = __import__('resource')\nlimit.setrlimit(limit.RLIMIT_CPU, (1, 1))\nwhile True: pass",
        "__import__('ctypes').string_at(0)",
    ],
)
def test_code_that_breaks_its_own_process_fails_its_episode_and_no_other(
    environment: AppworldEnvironment, tasks: dict[str, Task], code: str
) -> None:
    setup = "posix, is_socket = __import__('posix'), __import__('stat').S_ISSOCK\n"
    setup += "sockets = [n for n in range(3, 64) if is_open(n) and is_socket(posix.fstat(n).st_mode)]\n"
    is_open = "def is_open(n):\n    try: return posix.fstat(n)\n    except OSError: return None\n"
    result = play(environment, tasks[CHANGE_TASK], is_open + setup + code)[-1]
    assert (result.done, result.reward, result.success) == (True, 0.0, False)
    assert result.info["ended_by"] == "process_lost"
    assert "Supervisor: Ada Field" in environment.reset(tasks[CHANGE_TASK], 0)


def test_text_that_cannot_be_stored_or_shown_ends_no_episode(
    environment: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    codes = [
        "apis.supervisor.complete_task(answer='\\ud800')",
        "apis.supervisor.complete_task(answer=[{'x': '\\ud800'}])",
        "print('\\ud800')",
        "# \ud800",
        "print(bytes(range(256)).decode('latin-1'))",
        "__import__('posix').write(1, b'\\xff\\n{\"ok\": 1}\\n')",
        "print('x' * 10_000_000)",
        "apis.supervisor.show_profile(page_index=10**5000)",
    ]
    results = play(environment, tasks[CHANGE_TASK], *codes, LOGIN, CREATE, DONE)
    assert [r.done for r in results] == [False] * (len(codes) + 2) + [True]
    assert "argument answer" in results[0].observation and "argument answer" in results[1].observation
    assert results[2].observation == "\ud800"
    assert results[-1].reward == 1.0


def test_the_code_sees_no_variable_of_ours_and_no_ground_truth_where_it_usually_lies(
    environment: AppworldEnvironment, tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = "import os, pathlib\nroot = pathlib.Path(os.environ['APPWORLD_ROOT']) / 'data' / 'tasks'\n"
    look += "print(sorted(os.environ), sorted(p.relative_to(root).as_posix() for p in root.rglob('*')))"
    (result,) = play(environment, tasks[CHANGE_TASK], look)
    assert "KEY" not in result.observation and "TOKEN" not in result.observation
    assert "note01_1/specs.json" in result.observation
    assert "ground_truth" not in result.observation and "note01_2" not in result.observation


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


# ---- the sandbox


@pytest.fixture(scope="module")
def attacked(
    shared: AppworldEnvironment, settings: AppworldSettings, tasks: dict[str, Task]
) -> Iterator[AppworldEnvironment]:
    """An episode that attempts one escape after the other, and survives them all."""
    if not settings.isolate:
        pytest.skip("this system allows no sandbox, so code is not confined here")
    made = AppworldEnvironment(settings)
    play(made, tasks[CHANGE_TASK], LOGIN, "posix = __import__('posix')")
    yield made
    made.close()


@pytest.fixture(scope="module")
def bystander(
    shared: AppworldEnvironment, settings: AppworldSettings, tasks: dict[str, Task]
) -> Iterator[AppworldEnvironment]:
    """Another episode of the same engine."""
    made = AppworldEnvironment(settings)
    play(made, tasks[QUESTION_TASK], LOGIN)
    yield made
    made.close()


def host_pid(environment: AppworldEnvironment) -> int:
    assert environment._world is not None and environment._world._process is not None
    return environment._world._process.pid


MISSING, READ_ONLY = "FileNotFoundError", "Read-only file system|Permission denied"


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        # The numbers are those of tests/cases/60-appworld-escapes.
        pytest.param("posix.write(posix.open('OUT/a', posix.O_WRONLY | posix.O_CREAT), b'x')", MISSING, id="1-write"),
        pytest.param("print(posix.system('id > OUT/b'))", "32512", id="2-program"),
        pytest.param("posix.execv('/bin/sh', ['sh', '-c', 'id > OUT/b'])", MISSING, id="2-execute"),
        pytest.param("import pathlib\nprint(pathlib.Path('/etc/passwd').read_text())", MISSING, id="3-read"),
        pytest.param("import pathlib\nprint(list(pathlib.Path('OUT').parent.glob('*')))", r"^\[\]$", id="4-list"),
        pytest.param("import pathlib\nprint(list(pathlib.Path('ROOT').rglob('*')))", r"^\[\]$", id="4-solutions"),
        pytest.param("print(posix.kill(posix.getppid(), 9))", "None", id="5-signal-parent"),
        pytest.param("posix.kill(-1, 9)", "ProcessLookupError", id="5-signal-all"),
        pytest.param("posix.kill(ENGINE, 9)", "ProcessLookupError", id="5-signal-engine"),
        pytest.param("print(all([posix.fork() for _ in range(12)]))", "BlockingIOError", id="6-fork"),
        pytest.param(
            "while True:\n    if posix.fork() == 0:\n        while True: pass", "BlockingIOError", id="6-fork-and-spin"
        ),
        pytest.param(
            "__import__('socket').create_connection(('127.0.0.1', PORT), 2)", "Network is unreachable", id="7-network"
        ),
        pytest.param(
            "s = __import__('socket')\ns.socket(s.AF_UNIX).connect('\\0rised-OUT')",
            "ConnectionRefusedError",
            id="7-abstract-socket",
        ),
        pytest.param(
            "print(sorted(set(__import__('os').environ) - {'PATH', 'LANG', 'LC_ALL', 'TZ', 'HOME', 'TMPDIR'}))",
            r'^\["APPWORLD_CACHE", "APPWORLD_ROOT", "IPYTHONDIR", "OMP_NUM_THREADS"\]$',
            id="8-variables",
        ),
        pytest.param("posix.open('/proc/1/environ', 0)", MISSING, id="9-variables-of-others"),
        pytest.param("posix.open('/proc/ENGINE/mem', 0)", MISSING, id="9-memory-of-others"),
        pytest.param(
            "posix.symlink('OUT', '/episode/home/link')\nposix.listdir('/episode/home/link')", MISSING, id="9-symlink"
        ),
        pytest.param(
            "posix.link(__import__('json').__file__, '/episode/home/link2')",
            "Invalid cross-device link|Operation not permitted",
            id="9-hard-link",
        ),
        pytest.param(
            "posix.open(__import__('appworld').__file__, posix.O_WRONLY)", READ_ONLY, id="9-write-into-engine"
        ),
        pytest.param(
            "posix.open(__import__('json').__file__ + 'x', posix.O_WRONLY | posix.O_CREAT)",
            READ_ONLY,
            id="9-write-into-python",
        ),
        pytest.param(
            "for n in range(9):\n    f = posix.open(f'/tmp/{n}', posix.O_WRONLY | posix.O_CREAT)\n"
            "    for _ in range(31): posix.write(f, bytes(1 << 20))",
            "No space left on device",
            id="9-fill-tmp",
        ),
        pytest.param("posix.chroot('/tmp')", "PermissionError", id="chroot"),
        pytest.param("posix.setuid(0)", "Invalid argument|not permitted", id="become-root"),
        pytest.param(
            "c = __import__('ctypes').CDLL(None, use_errno=True)\n"
            "print(c.unshare(0x10000000), c.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None), c.ptrace(16, ENGINE, 0, 0))",
            "-1 -1 -1",
            id="system-calls",
        ),
    ],
)
def test_code_gets_out_of_its_sandbox_by_no_way(
    attacked: AppworldEnvironment,
    bystander: AppworldEnvironment,
    settings: AppworldSettings,
    tmp_path: Path,
    code: str,
    seen: str,
) -> None:
    out, engine = tmp_path / "out", attacked._host.engine.pid
    out.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0rised-{out}")
        abstract.listen()
        for name, value in (("OUT", out), ("ROOT", settings.root), ("ENGINE", engine)):
            code = code.replace(name, str(value))
        result = attacked.step(block(code.replace("PORT", str(server.getsockname()[1]))))
    assert re.search(seen, result.observation), result.observation
    assert not result.done and list(out.iterdir()) == []
    assert children(host_pid(attacked)) == []
    assert (attacked._host.engine.pid, attacked._host.engine.alive) == (engine, True)
    assert bystander.step(block(COUNT)).observation == "7"
    assert attacked.step(block("print(len(token) > 9)")).observation == "True"


def children(pid: int) -> list[int]:
    """Processes on this machine whose parent is ``pid``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
    return found


def test_an_episode_that_has_attempted_to_escape_can_still_be_won(
    attacked: AppworldEnvironment, tasks: dict[str, Task]
) -> None:
    attempt = "for n in range(9):\n    try: posix.unlink(f'/tmp/{n}')\n    except OSError: pass"
    results = play(attacked, tasks[CHANGE_TASK], "posix = __import__('posix')", attempt, LOGIN, COUNT, CREATE, DONE)
    assert (results[3].observation, results[-1].reward) == ("7", 1.0)


def test_what_code_started_ends_with_its_episode(attacked: AppworldEnvironment, tasks: dict[str, Task]) -> None:
    attacked.reset(tasks[CHANGE_TASK], 0)
    pid = host_pid(attacked)
    thread = "t = __import__('threading').Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True)\nt.start()"
    attacked.step(block(thread))
    attacked.rest()
    assert not Path(f"/proc/{pid}").exists() and children(pid) == []


def test_an_episode_without_a_sandbox_is_played_and_judged_likewise(
    environment: AppworldEnvironment, limit: Limit, tasks: dict[str, Task]
) -> None:
    limit(isolate=False)
    results = play(environment, tasks[QUESTION_TASK], LOGIN, COUNT, "apis.supervisor.complete_task(answer=7)")
    assert (results[1].observation, results[-1].reward) == ("7", 1.0)
    (broken,) = play(environment, tasks[QUESTION_TASK], "__import__('posix')._exit(0)")
    assert (broken.reward, broken.info["ended_by"]) == (0.0, "process_lost")


@pytest.mark.parametrize("name", ["with blank", "ümlaut\nand\\slash"])
def test_a_sandbox_is_made_wherever_temporary_files_are(settings: AppworldSettings, tmp_path: Path, name: str) -> None:
    if not settings.isolate:
        pytest.skip("this system allows no sandbox")
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / name)
    for folder in (tmp_path / name, tmp_path / "link"):
        variables = {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "PYTHONUTF8": "1"}
        command = [str(settings.python), "-s", str(SANDBOX)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_system_that_forbids_namespaces_names_what_it_refused(settings: AppworldSettings) -> None:
    unshare = shutil.which("unshare")
    if not settings.isolate or unshare is None:
        pytest.skip("this system allows no sandbox, or has no unshare to forbid it with")
    forbidden = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" -s "$1"'
    command = [unshare, "--user", "--map-root-user", "sh", "-c", forbidden, str(settings.python), str(SANDBOX)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")
    assert "unshare: No space left on device" in done.stdout


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
