"""The process in which episodes live: ``python -m rised.environments.worker``.

It reads one request at a time from its standard input and answers it on its standard output, both as JSON preceded by
a four-byte length. Environments print and so do the engines below them, so the two streams are moved to private
descriptors first and everything printed goes to standard error. The process ends when its parent does.
Which episode lives where, and what to do when this process dies, is the pool's business.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, BinaryIO

from rised.environments.base import Environment, EnvironmentFault, Resting, Task
from rised.environments.discovery import get

HEADER = struct.Struct(">I")
"""Length in bytes of the JSON text that follows."""


def encode_message(message: dict[str, Any]) -> bytes:
    """One framed message. ASCII JSON, so that any text (lone surrogates too) survives."""
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def digest(observations: list[str]) -> str:
    """Fingerprint of the observations of an episode, to tell whether a replay was faithful."""
    return hashlib.sha256(json.dumps(observations).encode("ascii")).hexdigest()[:16]


class Worker:
    """Holds the episode slots of one process and executes requests on them."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._makers: dict[str, Callable[[Any], Environment]] = {}
        self._idle: dict[str, list[Environment]] = {}
        self._slots: dict[int, tuple[str, Environment]] = {}

    def handle(self, request: dict[str, Any]) -> bytes:
        """The framed answer to one request; exceptions become answers, unexpected ones with a traceback."""
        try:
            return encode_message({"ok": getattr(self, f"_do_{request['op']}")(request)})
        except Exception as error:
            slot = request.get("slot")
            if slot is not None:
                self._discard(slot)
            in_make = isinstance(error, _MakeFailed)
            expected = isinstance(error.__cause__ if in_make else error, EnvironmentFault | OSError)
            text = str(error) if in_make else f"{type(error).__name__}: {error}"
            trace = "" if expected else f"\n{traceback.format_exc(limit=-8)}"
            return encode_message({"error": text, "traceback": trace, "in_make": in_make})

    def _do_configure(self, request: dict[str, Any]) -> dict[str, int]:
        """Returns each environment's own limit of turns."""
        for module in request["modules"]:
            importlib.import_module(module)
        for name, settings in request["settings"].items():
            spec = get(name)
            self._settings[name] = spec.settings_type.model_validate(settings)  # type: ignore[attr-defined]
            self._makers[name] = spec.make
        return {name: get(name).max_turns for name in self._makers}

    def _do_prompt(self, request: dict[str, Any]) -> str:
        environment = self._take(request["environment"])
        self._idle.setdefault(request["environment"], []).append(environment)
        return environment.system_prompt()

    def _do_play(self, request: dict[str, Any]) -> dict[str, Any]:
        """Reset and replay if the request carries a task, then execute the action if it carries one."""
        slot = request["slot"]
        answer: dict[str, Any] = {}
        if "task" in request:
            task = Task(**request["task"])
            self._release(slot)
            environment = self._take(task.environment)
            self._slots[slot] = (task.environment, environment)
            observations = [environment.reset(task, request["seed"])]
            observations += [environment.step(action).observation for action in request["history"]]
            answer["observation"] = observations[-1]
            answer["digest"] = digest(observations)
        if "action" in request:
            answer["step"] = asdict(self._slots[slot][1].step(request["action"]))
        return answer

    def _do_release(self, request: dict[str, Any]) -> str:
        for slot in request["slots"]:
            self._release(slot)
        return "released"

    def _take(self, name: str) -> Environment:
        idle = self._idle.get(name)
        if idle:
            return idle.pop()
        try:
            return self._makers[name](self._settings[name])
        except Exception as error:
            kind = "" if isinstance(error, EnvironmentFault) else f"{type(error).__name__}: "
            raise _MakeFailed(f"{name} cannot be built: {kind}{error}") from error

    def _release(self, slot: int) -> None:
        if slot in self._slots:
            name, environment = self._slots.pop(slot)
            if isinstance(environment, Resting):
                environment.rest()
            self._idle.setdefault(name, []).append(environment)

    def _discard(self, slot: int) -> None:
        """An environment that raised is not used again."""
        if slot in self._slots:
            _, environment = self._slots.pop(slot)
            try:
                environment.close()
            except Exception:
                traceback.print_exc()


class _MakeFailed(RuntimeError):
    """The environment cannot be built at all (settings, missing data): no episode of it can run."""


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return requests, answers


def _end_with_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Serve requests until the input ends."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = _private_streams()
    _end_with_parent(parent)
    worker = Worker()
    while header := requests.read(HEADER.size):
        request = json.loads(requests.read(HEADER.unpack(header)[0]))
        answers.write(worker.handle(request))
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
