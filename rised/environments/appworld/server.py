"""The engine's side of AppWorld: a script for the interpreter that has the ``appworld`` package.

It imports nothing but that package and the standard library, since the engine's dependencies and ours exclude each
other. One process loads the engine once and is then forked, once for every episode and once for every verdict: two
worlds never share a process, a world begins in milliseconds, and the code of a policy never runs where a verdict is
reached. Descriptor 0 is the control socket of the first process; a forked one is handed a socket of its own. All
messages are lines of JSON; what anything prints goes elsewhere.

Requests on the control socket: ``fork`` (with a descriptor), ``kill``. Requests on an episode's socket: ``tasks``,
``open``, ``execute``, ``evaluate``. Every request gets one answer, ``{"ok": …}`` or ``{"error": …, "traceback": …}``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import traceback
from typing import Any

MAX_REQUEST_BYTES = 4_000_000
MAX_LOGGED_CALLS = 64
MAX_LOGGED_TEXT = 300
MAX_SEEN_IDS = 100_000
_STATUS = re.compile(r"Response status code is (\d+)")
_SYNTAX_ERROR = "Execution failed. Traceback:\nSyntax error in line:"
_FAILED = "Execution failed. Traceback:\n"
_INFRASTRUCTURE = ("admin",)

_NEW_MOUNTS, _NEW_USERS, _NEW_NETWORK = 0x20000, 0x10000000, 0x40000000
_READ_ONLY, _RECURSIVE, _PRIVATE = 0x1, 0x4000, 0x40000
"""Constants of Linux's sched.h and mount.h."""
_write, _read, _dumps, _loads = os.write, os.read, json.dumps, json.loads
"""Kept aside: the engine replaces functions of ``os`` and ``json`` while the code of a policy runs."""


class Lines:
    """JSON lines over a connected socket's descriptor. ASCII, so that any text (lone surrogates too) survives."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""

    def read(self) -> dict[str, Any] | None:
        """The next request; None when the other side is gone."""
        while b"\n" not in self._pending:
            chunk = _read(self._descriptor, 1 << 16)
            if not chunk or len(self._pending) > MAX_REQUEST_BYTES:
                return None
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        request: dict[str, Any] = _loads(line)
        return request

    def write(self, message: dict[str, Any]) -> None:
        data = memoryview(_dumps(message).encode("ascii") + b"\n")
        while data:
            data = data[_write(self._descriptor, data) :]


def failure(error: BaseException) -> dict[str, Any]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-8))
    return {"error": f"{type(error).__name__}: {error}", "traceback": text[-4000:]}


class Episode:
    """One forked process: at most one world in its life."""

    def __init__(self) -> None:
        self._world: Any = None
        self._output_limit_chars = 0
        self._calls: list[dict[str, Any]] = []
        self._call_count = 0
        self._logging = False
        self._cell: Any = None
        self._seen_ids: set[str] = set()

    def tasks(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Ids and difficulties of a data set, in its own order. ``difficulties`` null: all."""
        from appworld import load_task_ids

        wanted = request["difficulties"]
        difficulty: dict[str, int] = {}
        for level in (1, 2, 3):
            difficulty |= dict.fromkeys(load_task_ids(request["dataset"], difficulty=level), level)
        ids = load_task_ids(request["dataset"])
        return [
            {"id": task_id, "difficulty": difficulty.get(task_id)}
            for task_id in ids
            if wanted is None or difficulty.get(task_id) in wanted
        ]

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin the world of a task, without its ground truth. The settings are the engine's own parameters."""
        from appworld import AppWorld

        if self._world is not None:
            raise RuntimeError("a process holds one world in its life; fork another")
        random.seed(request["random_seed"])
        self._output_limit_chars = request["output_limit_chars"]
        world = AppWorld(
            task_id=request["task"],
            experiment_name=request["episode"],
            load_ground_truth=False,
            raise_on_unsafe_syntax=True,
            null_patch_unsafe_execution=True,
            random_seed=request["random_seed"],
            timeout_seconds=request["timeout_s"],
            max_interactions=request["max_interactions"],
            max_api_calls_per_interaction=request["max_api_calls"],
        )
        self._world = world
        self._watch(world)
        supervisor = world.task.supervisor
        return {
            "instruction": world.task.instruction,
            "supervisor": {
                name: str(getattr(supervisor, name)) for name in ("first_name", "last_name", "email", "phone_number")
            },
        }

    def _watch(self, world: Any) -> None:
        """Log every call of an API and keep the result of every cell; neither changes what the code sees."""
        request, run_cell = world.requester._request, world._shell_run_cell

        def logged_request(_app_name: str, _api_name: str, **data: Any) -> Any:
            if not self._logging or _app_name in _INFRASTRUCTURE:
                return request(_app_name=_app_name, _api_name=_api_name, **data)
            entry = self._describe(_app_name, _api_name, data)
            self._call_count += 1
            if len(self._calls) >= MAX_LOGGED_CALLS:
                del self._calls[MAX_LOGGED_CALLS // 2]
            self._calls.append(entry)
            try:
                response = request(_app_name=_app_name, _api_name=_api_name, **data)
            except Exception as error:
                found = _STATUS.search(str(error))
                entry["status"] = int(found.group(1)) if found else None
                raise
            entry["status"] = response.status_code
            if response.status_code == 200:
                self._remember(entry, response)
            return response

        def kept_cell(code: str) -> Any:
            self._cell = run_cell(code)
            return self._cell

        world.requester._request = logged_request
        world._shell_run_cell = kept_cell

    def _describe(self, app: str, api: str, data: dict[str, Any]) -> dict[str, Any]:
        """What is called with which parameters; values stay out, but for paging and looked-up documentation."""
        from appworld.requester import _get_api_name_to_doc

        given = {name: value for name, value in data.items() if name not in ("client", "raise_on_failure", "track")}
        document = _get_api_name_to_doc(app, include_private_apis=True).get(api)
        parameters = {p["name"]: p for p in document["parameters"]} if document else {}
        entry: dict[str, Any] = {
            "app": app,
            "api": api,
            "method": document["method"].lower() if document else None,
            "status": None,
            "unknown_parameters": sorted(set(given) - set(parameters)) if document else [],
            "needs_token": bool(parameters.get("access_token", {}).get("required")),
            "has_token": given.get("access_token") is not None,
            "unseen_ids": sorted(
                name
                for name, value in given.items()
                if name.endswith("_id") and name in parameters and str(value) not in self._seen_ids
            ),
        }
        if "page_index" in parameters:
            entry["page_index"] = _whole(given.get("page_index", parameters["page_index"]["default"]))
            limit = parameters.get("page_limit", {"default": None})
            entry["page_limit"] = _whole(given.get("page_limit", limit["default"]))
        if app == "api_docs":
            entry["about_app"] = str(given.get("app_name", ""))[:MAX_LOGGED_TEXT]
            entry["about_api"] = str(given.get("api_name", ""))[:MAX_LOGGED_TEXT]
        if (app, api) == ("supervisor", "complete_task"):
            entry["claims"] = str(given.get("status", "success"))[:MAX_LOGGED_TEXT]
        return entry

    def _remember(self, entry: dict[str, Any], response: Any) -> None:
        """Ids that the policy can know from now on, and the length of a list."""
        try:
            content = response.json()
        except ValueError:
            return
        if isinstance(content, list):
            entry["count"] = len(content)
        pending = [content]
        while pending and len(self._seen_ids) < MAX_SEEN_IDS:
            item = pending.pop()
            if isinstance(item, dict):
                self._seen_ids |= {str(v) for k, v in item.items() if k.endswith("id") and isinstance(v, int | str)}
                self._seen_ids |= {
                    str(v) for k, vs in item.items() if k.endswith("ids") and isinstance(vs, list) for v in vs
                }
                pending += item.values()
            elif isinstance(item, list):
                pending += item

    def execute(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one piece of code; whatever it does to this process ends here."""
        world = self._world
        self._calls, self._call_count, self._cell = [], 0, None
        self._logging = True
        try:
            output = world.execute(request["code"])
        except BaseException as error:  # the engine lets KeyboardInterrupt and its like through, past its own clean-up
            world.safety_guard.disable()
            world._save_state(world.output_db_home_path_on_disk)
            output = f"{_FAILED}{type(error).__name__}: {error}"
            failed: tuple[str, str] | None = (type(error).__name__, str(error))
        else:
            failed = self._failure(output)
        finally:
            self._logging = False
            signal.alarm(0)
        return {
            "output": output[: self._output_limit_chars],
            "output_chars": len(output),
            "error_type": failed and failed[0],
            "error": failed and failed[1][:MAX_LOGGED_TEXT],
            "calls": self._calls,
            "call_count": self._call_count,
            "completed": bool(world.task_completed()),
        }

    def _failure(self, output: str) -> tuple[str, str] | None:
        """Name and text of what the code raised. SyntaxError and NotAllowed: it was never run. None: all went well."""
        cell = self._cell
        if cell is None:
            text = output.removeprefix(_FAILED)
            if output.startswith(_SYNTAX_ERROR):
                return "SyntaxError", text
            if text != output:
                return ("TimeoutError" if "timed out after" in text else "NotAllowed"), text
            return None
        error = cell.error_in_exec or cell.error_before_exec
        if error is None:
            return None
        text = str(getattr(error, "detail", None) or error)
        return ("TimeoutError" if "timed out after" in text else type(error).__name__), text

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """The engine's verdict on the state that an episode has left on disk."""
        from appworld import evaluate_task

        if self._world is not None:
            raise RuntimeError("a verdict is reached in a process that has run no code; fork another")
        tests = evaluate_task(task_id=request["task"], experiment_name=request["episode"])
        success = tests.success() if callable(tests.success) else tests.success
        total = tests.num_tests() if callable(tests.num_tests) else tests.num_tests
        missing = [failed for failed in tests.failures if failed.get("label") == "no_op_fail"]
        return {
            "success": bool(success),
            "tests_passed": len(tests.passes),
            "tests_total": int(total),
            "missing_changes": len(missing),
            "unwanted_changes": len(tests.failures) - len(missing),
        }


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def confine(folder: str, memory_mb: int) -> None:
    """A session, a folder, variables and limits of its own. What this does not confine is in docs/environments.md."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    with open("/proc/self/statm") as statm:
        inherited = int(statm.read().split()[0]) * resource.getpagesize()
    limit = inherited + memory_mb * (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        # Where memory runs out, an episode should end before the training does.
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    os.environ.clear()
    home = os.path.join(folder, "home")
    os.environ.update(
        kept,
        HOME=home,
        TMPDIR=home,
        IPYTHONDIR=home,
        APPWORLD_ROOT=folder,
        APPWORLD_CACHE=home,
        OMP_NUM_THREADS="1",
    )
    os.chdir(home)


def isolate(hidden: str) -> None:
    """Leave the network, and see an empty folder at ``hidden``. OSError where the system does not allow it.

    Root may do this at once; others need a user namespace of their own, in which they keep their ids.
    """
    library = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if library.unshare(_NEW_MOUNTS | _NEW_NETWORK) != 0:
        _check(library.unshare(_NEW_USERS | _NEW_MOUNTS | _NEW_NETWORK), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _check(library.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None), "mount /")
    _check(library.mount(b"none", os.fsencode(hidden), b"tmpfs", _READ_ONLY, b"size=4k"), f"mount {hidden}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def serve_episode(descriptor: int, folder: str, memory_mb: int, hidden: str | None) -> None:
    """Answer requests until the other side is gone. What keeps the process from being confined answers them all."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    lines, episode = Lines(descriptor), Episode()
    obstacle: dict[str, Any] | None = None
    try:
        if hidden is not None:
            isolate(hidden)
        confine(folder, memory_mb)
    except OSError as error:
        obstacle = failure(error) | {"obstacle": True}
    operations = {
        "tasks": episode.tasks,
        "open": episode.open,
        "execute": episode.execute,
        "evaluate": episode.evaluate,
    }
    while (request := lines.read()) is not None:
        if obstacle is not None:
            lines.write(obstacle)
            continue
        try:
            answer = {"ok": operations[request["op"]](request)}
        except Exception as error:
            answer = failure(error)
        lines.write(answer)


def load_engine() -> str:
    """Import everything that a world needs, so that forks share it. Returns the version."""
    import importlib

    import appworld
    import appworld.evaluator
    from appworld.apps import build_main_app, get_all_apps

    names = tuple(sorted(get_all_apps()))
    for name in names:
        importlib.import_module(f"appworld.apps.{name}.apis")
    build_main_app(names)
    gc.collect()
    gc.freeze()
    return str(appworld.__version__)


def kill(pid: int, children: set[int]) -> str:
    """End a child and its descendants; says how it ended."""
    if pid not in children:
        return "unknown"
    children.discard(pid)
    ended, status = os.waitpid(pid, os.WNOHANG)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    if ended:
        code = os.waitstatus_to_exitcode(status)
        return f"signal {-code}" if code < 0 else f"exit status {code}"
    # Before it has a session of its own, the child is not yet the leader of a group.
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "killed"


def become_episode(descriptor: int, request: dict[str, Any]) -> None:
    """The forked side; never returns."""
    code = 1
    try:
        serve_episode(descriptor, request["folder"], request["memory_mb"], request["hidden"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> int:
    """Load, announce, then serve the control socket until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    os.set_inheritable(control.fileno(), False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    lines, folder = Lines(control.fileno()), sys.argv[1]
    try:
        serve_control(control, lines)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def serve_control(control: socket.socket, lines: Lines) -> None:
    lines.write({"ok": {"version": load_engine(), "python": sys.version.split()[0]}})
    children: set[int] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 1)
        if not data:
            break
        request = _loads(data)
        try:
            if request["op"] == "fork":
                pid = os.fork()
                if pid == 0:
                    control.close()
                    become_episode(descriptors[0], request)
                children.add(pid)
                answer: dict[str, Any] = {"ok": {"pid": pid}}
            else:
                answer = {"ok": {"ended": kill(request["pid"], children)}}
        except Exception as error:
            answer = failure(error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        lines.write(answer)
    for pid in list(children):
        kill(pid, children)


if __name__ == "__main__":
    sys.exit(main())
