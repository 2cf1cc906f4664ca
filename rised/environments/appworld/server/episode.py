"""An episode's process, the engine's side: one world, the log of what its code does, or one verdict.

Imports the ``appworld`` package and the standard library; it is found beside ``__main__`` when that is run.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Iterable
from typing import Any

MAX_LOGGED_CALLS = 64
MAX_LOGGED_TEXT = 300
MAX_SEEN_IDS = 100_000
_MAX_LOGGED_NUMBER = 2**63
_STATUS = re.compile(r"Response status code is (\d+)")
_SYNTAX_ERROR = "Execution failed. Traceback:\nSyntax error in line:"
_FAILED = "Execution failed. Traceback:\n"
_INFRASTRUCTURE = ("admin",)


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
        self._task = self._episode = ""

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
        self._task, self._episode = request["task"], request["episode"]
        self._watch(world)
        supervisor = world.task.supervisor
        return {
            "instruction": world.task.instruction,
            "supervisor": {
                name: str(getattr(supervisor, name)) for name in ("first_name", "last_name", "email", "phone_number")
            },
        }

    def _watch(self, world: Any) -> None:
        """Log every call of an API and keep the result of every cell; neither changes what the code sees.

        Calls with text that no database can store are refused: the engine would fail at every later turn. Its own
        logs would too, and nothing reads them.
        """
        request, run_cell = world.requester._request, world._shell_run_cell

        def logged_request(_app_name: str, _api_name: str, **data: Any) -> Any:
            for name, value in data.items():
                _check_text(name, value)
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
        world.save_logs = lambda: None

    def _describe(self, app: str, api: str, data: dict[str, Any]) -> dict[str, Any]:
        """What is called with which parameters; values stay out, but for paging and looked-up documentation."""
        from appworld.requester import _get_api_name_to_doc

        given = {name: value for name, value in data.items() if name not in ("client", "raise_on_failure", "track")}
        document = _get_api_name_to_doc(app, include_private_apis=True).get(api)
        parameters = {p["name"]: p for p in document["parameters"]} if document else {}
        entry: dict[str, Any] = {
            "app": app[:MAX_LOGGED_TEXT],
            "api": api[:MAX_LOGGED_TEXT],
            "method": document["method"].lower() if document else None,
            "status": None,
            "unknown_parameters": _names(set(given) - set(parameters)) if document else [],
            "needs_token": bool(parameters.get("access_token", {}).get("required")),
            "has_token": given.get("access_token") is not None,
            "unseen_ids": _names(
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

    def state(self, request: dict[str, Any]) -> dict[str, str]:
        """The databases that the engine saved after the last execution, as changes to those of the task: name -> text.

        They leave the process through its socket, since nothing in a sandbox's file tree outlives it.
        """
        folder = _databases(self._task, self._episode)
        state = {}
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                state[name] = file.read()
        return state

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """The engine's verdict on ``state``, which an episode has left."""
        from appworld import evaluate_task

        if self._world is not None:
            raise RuntimeError("a verdict is reached in a process that has run no code; fork another")
        folder = _databases(request["task"], request["episode"])
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        for name, text in request["state"].items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
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


def _databases(task: str, episode: str) -> str:
    """Folder where the engine saves the databases of an episode."""
    from appworld.common.path_store import path_store

    return os.path.join(path_store.experiment_outputs, episode, "tasks", task, "dbs")


def _check_text(name: str, value: Any) -> None:
    """ValueError for a lone surrogate anywhere in an argument."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"argument {name}: {error}") from None
    elif isinstance(value, dict):
        for item in value.items():
            _check_text(name, item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            _check_text(name, item)


def _names(names: Iterable[str]) -> list[str]:
    return sorted(name[:MAX_LOGGED_TEXT] for name in names)[:MAX_LOGGED_CALLS]


def _whole(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _MAX_LOGGED_NUMBER else None
