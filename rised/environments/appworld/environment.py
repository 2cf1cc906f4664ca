"""AppWorld's episode: code in, output out, until the task is declared complete; then the engine's own verdict.

``StepResult.action_valid`` is True for a reply with code that ran without an error. Reward 1 or 0 is the verdict.
``StepResult.info`` of every turn, all JSON values, for detectors and reports:

- ``reply``: code or invalid; ``problem`` (why nothing could be run), ``blocks`` (of Python), ``closed`` (the block's
  fence), ``invents`` (text behind the code that writes an output)
- of code: ``code`` (its first 8,000 characters); ``error_type`` (name of the exception; SyntaxError and NotAllowed: it
  was never run; None: no error) and ``error`` (its text); ``output_chars``, ``output_cut``, ``printed``
- ``calls``: the API calls that the code made, in order, at most 64 (the first and the latest), and ``call_count``, all
  of them. A call: ``app``, ``api``, ``method`` (get reads, all others change), ``status`` (HTTP; 200 is success),
  ``unknown_parameters``, ``needs_token``, ``has_token``, ``unseen_ids`` (parameters whose id no reply had shown); of a
  paged list ``page_index``, ``page_limit``; of a list ``count``; of documentation ``about_app``, ``about_api``; of
  complete_task ``claims`` (success or fail)
- ``unknown_api``: the app or API that does not exist and was called, as APP or APP.API
- ``completed``: the task was declared complete
- of the first turn: ``task_values``, quoted in the instruction, and ``difficulty``
- of the last: ``success``, ``tests_passed``, ``tests_total``, ``tests_share``, ``missing_changes`` and
  ``unwanted_changes`` (failed tests of either kind); or ``ended_by``: time_limit, process_lost or state_unreadable,
  when code broke its own episode (see ``world.EpisodeFailed``)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rised.environments.appworld.prompts import ENDED_BY, NO_CODE, SYSTEM_PROMPTS, first_observation, shown_output
from rised.environments.appworld.replies import read_reply
from rised.environments.appworld.settings import AppworldSettings
from rised.environments.appworld.tasks import task_hash
from rised.environments.appworld.world import EpisodeFailed, World, acquire_host, release_host
from rised.environments.base import EnvironmentFault, StepResult, Task

MAX_LOGGED_CODE = 8_000
MAX_LOGGED_ERROR = 300
SILENT_OUTPUT = "Execution successful."
"""What the engine says of code that ran and printed nothing."""
_QUOTED = re.compile(r"(?<!\w)'([^'\n]+)'(?!\w)|\"([^\"\n]+)\"")
_NO_APP = re.compile(r"No app named '([^']*)' found")
_NO_API = re.compile(r"No API named '([^']*)' found in the (\w+) app")


class AppworldEnvironment:
    """One episode at a time, in a process of its own. Nothing in an episode depends on ``seed``."""

    def __init__(self, settings: AppworldSettings) -> None:
        """EnvironmentFault when the engine or its data are missing; nothing is started yet."""
        self._settings = settings
        self._host = acquire_host(settings)
        self._world: World | None = None
        self._first: dict[str, Any] = {}
        self._closed = False

    def system_prompt(self) -> str:
        return SYSTEM_PROMPTS[self._settings.prompt_style]

    def reset(self, task: Task, seed: int) -> str:
        """Open the task's world; EnvironmentFault when its files are not those that were prepared."""
        if "task" not in task.payload:
            raise EnvironmentFault(f"appworld task {task.task_id}: payload lacks 'task'; prepare the tasks again")
        self._leave()
        task_id = task.payload["task"]
        if task_hash(self._host.installation.root, task_id) != task.content_hash:
            raise EnvironmentFault(
                f"appworld task {task_id}: its files in {self._host.installation.root} are not those that were "
                "prepared; prepare the tasks again or restore the data"
            )
        self._world = World(self._host, task_id)
        opening = self._world.opening
        self._first = {
            "task_values": [a or b for a, b in _QUOTED.findall(opening["instruction"])],
            "difficulty": task.payload.get("difficulty"),
        }
        return first_observation(opening)

    def step(self, action: str) -> StepResult:
        world = self._world
        if world is None:
            raise EnvironmentFault("appworld: step before reset, or after the end")
        reply = read_reply(action)
        info: dict[str, Any] = {
            "reply": "invalid" if reply.code is None else "code",
            "problem": reply.problem,
            "blocks": reply.blocks,
            "closed": reply.closed,
            "invents": reply.invents,
            "completed": False,
            **self._first,
        }
        self._first = {}
        if reply.code is None:
            return StepResult(NO_CODE.format(problem=reply.problem), False, "", False, info=info)
        info["code"] = reply.code[:MAX_LOGGED_CODE]
        try:
            answer = world.execute(reply.code)
            info |= _log(answer)
            if answer["completed"]:
                verdict = world.verdict()
        except EpisodeFailed as failure:
            # The policy's own doing: an environment's fault would void the reward at the policy's will.
            self._world = None
            return self._failed(reply.code, info, failure)
        except BaseException:
            self._world = None
            raise
        observation, valid = shown_output(answer), answer["error_type"] is None
        if not answer["completed"]:
            return StepResult(observation, False, reply.code, valid, info=info)
        self._world = None
        info |= verdict | {"tests_share": verdict["tests_passed"] / max(verdict["tests_total"], 1)}
        success = bool(verdict["success"])
        return StepResult(observation, True, reply.code, valid, float(success), success, "environment_done", info)

    @staticmethod
    def _failed(code: str, info: dict[str, Any], failure: EpisodeFailed) -> StepResult:
        """The end of an episode whose code broke it: reward 0."""
        observation = ENDED_BY[failure.ended_by]
        info |= {"error_type": "Killed", "error": str(failure)[:MAX_LOGGED_ERROR], "unknown_api": None}
        info |= {"calls": [], "call_count": 0, "printed": False, "output_chars": 0, "output_cut": False}
        info |= {"completed": False, "success": False, "ended_by": failure.ended_by}
        return StepResult(observation, True, code, False, 0.0, False, "environment_done", info)

    def expert(self, seed: int, noise: float) -> Iterator[str]:
        """There is none: AppWorld's solutions belong to its data, which are not ours to hand on."""
        raise EnvironmentFault("appworld has no expert; leave it out of warm starts that need demonstrations")

    def rest(self) -> None:
        """Close the world of an episode that was given back before its end: it would hold a process for nothing."""
        self._leave()

    def close(self) -> None:
        self._leave()
        if not self._closed:
            self._closed = True
            release_host(self._host)

    def _leave(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None


def _log(answer: dict[str, Any]) -> dict[str, Any]:
    """The part of an execution's answer that detectors read."""
    error = answer["error"]
    return {
        "error_type": answer["error_type"],
        "error": error,
        "unknown_api": _unknown_api(error),
        "output_chars": answer["output_chars"],
        "output_cut": answer["output_chars"] > len(answer["output"]),
        "printed": answer["error_type"] is None and answer["output"].strip() not in ("", SILENT_OUTPUT),
        "calls": answer["calls"],
        "call_count": answer["call_count"],
        "completed": answer["completed"],
    }


def _unknown_api(error: str | None) -> str | None:
    if error is None:
        return None
    if found := _NO_API.search(error):
        return f"{found.group(2)}.{found.group(1)}"
    found = _NO_APP.search(error)
    return found.group(1) if found else None
