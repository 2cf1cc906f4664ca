"""One task's world: its private folder, the process it runs in, and what is needed to build it again.

An engine is shared by all worlds of a worker, and the worlds that are open at once are bounded: one that must give
way is closed and, when it is next used, opened again and its code replayed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from rised.environments.appworld.answers import MAX_LOG_BYTES, MAX_STATE_BYTES, read_execution, read_state
from rised.environments.appworld.channel import ChannelFault, ChannelSilent
from rised.environments.appworld.engine import Engine, EngineProcess, Installation
from rised.environments.appworld.settings import AppworldSettings
from rised.environments.base import EnvironmentFault

_MAX_INTERACTIONS = 1000
"""The engine's own limit of executions in one world."""


class EpisodeFailed(Exception):
    """The policy's code ended its own episode. ``ended_by``: time_limit (it ignored its interruption and was killed),
    process_lost (its process ended, or answered what the engine would not) or state_unreadable (it left databases
    on which no verdict can be reached, although one can on the task's own)."""

    def __init__(self, ended_by: str, reason: str) -> None:
        super().__init__(reason)
        self.ended_by = ended_by


class Workspace:
    """A data root of one world: the engine's data by links, the task by copies, and a home.

    The task's ground truth is not there before a verdict is due. A sandbox has the data and nothing else of this
    folder. Without one, the links tell where the data really are, solutions included.
    """

    def __init__(self, parent: Path, root: Path, task_id: str | None) -> None:
        """``task_id`` None: all tasks with their ground truth, for lists of tasks."""
        self.folder = Path(tempfile.mkdtemp(prefix="world-", dir=parent))
        self._root, self._task_id = root, task_id
        (self.folder / "home").mkdir()
        data = self.folder / "data"
        if task_id is None:
            data.symlink_to(root / "data")
            return
        task = data / "tasks" / task_id
        task.parent.mkdir(parents=True)
        for entry in (root / "data").iterdir():
            if entry.name != "tasks":
                (data / entry.name).symlink_to(entry)
        shutil.copytree(root / "data" / "tasks" / task_id, task, ignore=shutil.ignore_patterns("ground_truth"))

    def reveal_ground_truth(self) -> None:
        assert self._task_id is not None
        truth = Path("data") / "tasks" / self._task_id / "ground_truth"
        shutil.copytree(self._root / truth, self.folder / truth)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Host:
    """The engine that the worlds of this process share, and the worlds that are open."""

    def __init__(self, settings: AppworldSettings) -> None:
        self.settings = settings
        self.installation = Installation.find(settings)
        if settings.isolate:
            self.installation.check_sandbox(settings.start_timeout_s)
        self._engine: Engine | None = None
        self._open: list[World] = []
        self.users = 0
        self.evictions = 0
        """How often a world was closed to make room."""

    @property
    def engine(self) -> Engine:
        """The running engine; started at first use and after its death."""
        if self._engine is not None and not self._engine.alive:
            self._engine.close()
            self._engine = None
        if self._engine is None:
            self._engine = Engine(self.installation.python, self.settings.start_timeout_s)
        return self._engine

    def admit(self, world: World) -> None:
        """Make room for one more: the world that is cheapest to replay gives way, of equals the one used last."""
        while len(self._open) >= self.settings.processes:
            victim = min(reversed(self._open), key=lambda other: len(other.history))
            victim.suspend()
            self.evictions += 1
        self._open.append(world)

    def touch(self, world: World) -> None:
        """Note that ``world`` was used last."""
        self._open.remove(world)
        self._open.append(world)

    def dismiss(self, world: World) -> None:
        if world in self._open:
            self._open.remove(world)

    def list_tasks(self, dataset: str, difficulties: tuple[int, ...] | None) -> list[dict[str, Any]]:
        """Ids and difficulties of a data set, in its order."""
        engine = self.engine
        workspace = Workspace(engine.folder, self.installation.root, None)
        process = engine.fork(workspace.folder, self.settings.memory_mb)
        try:
            request = {"op": "tasks", "dataset": dataset, "difficulties": difficulties and list(difficulties)}
            tasks: list[dict[str, Any]] = process.ask(request, self.settings.start_timeout_s)
            return tasks
        finally:
            process.close()
            workspace.remove()

    def close(self) -> None:
        for world in list(self._open):
            world.close()
        if self._engine is not None:
            self._engine.close()
            self._engine = None


class World:
    """A task being worked on. ``opening`` is what the engine says of the task: instruction and supervisor."""

    def __init__(self, host: Host, task_id: str) -> None:
        self._host, self._task_id = host, task_id
        self._process: EngineProcess | None = None
        self._workspace: Workspace | None = None
        self._episode = ""
        self.history: list[str] = []
        """The code executed so far."""
        self._outputs: list[str] = []
        self.opening = self._start()

    def execute(self, code: str) -> dict[str, Any]:
        """The engine's answer (see ``server``). EpisodeFailed when the code breaks its world."""
        process = self._running()
        answer = self._execute(process, code)
        self.history.append(code)
        self._outputs.append(_fingerprint(answer))
        return answer

    def verdict(self) -> dict[str, Any]:
        """The engine's tests on the databases that the episode leaves, in a process that has run no code.

        Ends the world. EpisodeFailed when the code broke its process or the databases.
        """
        settings = self._host.settings
        try:
            process = self._running()
            try:
                state = read_state(process.ask({"op": "state"}, settings.kill_after_s, MAX_STATE_BYTES))
            except ChannelFault as fault:
                raise EpisodeFailed("process_lost", str(fault)) from None
            self._end_process()
            try:
                return self._evaluate(state)
            except ChannelFault as fault:
                reason = str(fault)
        finally:
            self.close()
        World(self._host, self._task_id).evaluate_untouched()
        raise EpisodeFailed("state_unreadable", reason)

    def evaluate_untouched(self) -> None:
        """Reach a verdict on the task's own databases. ChannelFault when the engine cannot."""
        try:
            state = self._running().ask({"op": "state"}, self._host.settings.start_timeout_s)
            self._end_process()
            self._evaluate(state)
        finally:
            self.close()

    def _evaluate(self, state: dict[str, str]) -> dict[str, Any]:
        workspace, settings = self._workspace, self._host.settings
        assert workspace is not None
        workspace.reveal_ground_truth()
        process = self._host.engine.fork(workspace.folder, settings.memory_mb, settings.isolate)
        try:
            request = {"op": "evaluate", "task": self._task_id, "episode": self._episode, "state": state}
            verdict: dict[str, Any] = process.ask(request, settings.execute_timeout_s + settings.kill_after_s)
            return verdict
        finally:
            process.close()

    def suspend(self) -> None:
        """Give up the process; the next use builds the world again."""
        self._end_process()
        self._remove_workspace()

    close = suspend

    def _running(self) -> EngineProcess:
        if self._process is None:
            self._start()
            self._replay()
        assert self._process is not None
        self._host.touch(self)
        return self._process

    def _replay(self) -> None:
        assert self._process is not None
        for code, expected in zip(self.history, self._outputs, strict=True):
            try:
                same = _fingerprint(self._execute(self._process, code)) == expected
            except EpisodeFailed:
                same = False
            if not same:
                self.close()
                raise EnvironmentFault(f"AppWorld task {self._task_id}: a replay of the same code gave another output")

    def _start(self) -> dict[str, Any]:
        host, settings = self._host, self._host.settings
        host.admit(self)
        try:
            engine = host.engine
            self._workspace = Workspace(engine.folder, host.installation.root, self._task_id)
            self._process = engine.fork(self._workspace.folder, settings.memory_mb, settings.isolate)
            self._episode = f"episode-{uuid.uuid4().hex}"
            request = {
                "op": "open",
                "task": self._task_id,
                "episode": self._episode,
                "random_seed": settings.random_seed,
                "timeout_s": settings.execute_timeout_s,
                "max_interactions": _MAX_INTERACTIONS,
                "max_api_calls": settings.api_calls_per_turn,
                "output_limit_chars": settings.output_limit_chars,
            }
            opening: dict[str, Any] = self._process.ask(request, settings.start_timeout_s)
            return opening
        except BaseException:
            self.close()
            raise

    def _execute(self, process: EngineProcess, code: str) -> dict[str, Any]:
        settings = self._host.settings
        timeout_s = settings.execute_timeout_s + settings.kill_after_s
        max_bytes = MAX_LOG_BYTES + 12 * settings.output_limit_chars  # a character is two escapes of six at most
        try:
            answer = process.ask({"op": "execute", "code": code}, timeout_s, max_bytes)
            return read_execution(answer, settings.output_limit_chars)
        except BaseException as error:
            self.close()
            if isinstance(error, ChannelSilent):
                raise EpisodeFailed("time_limit", str(error)) from None
            if isinstance(error, ChannelFault):
                raise EpisodeFailed("process_lost", str(error)) from None
            raise

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        self._host.dismiss(self)

    def _remove_workspace(self) -> None:
        if self._workspace is not None:
            self._workspace.remove()
            self._workspace = None


def _fingerprint(answer: dict[str, Any]) -> str:
    seen = json.dumps([answer["output"], answer["output_chars"], answer["completed"]])
    return hashlib.sha256(seen.encode("ascii")).hexdigest()


_hosts: dict[str, Host] = {}
"""Settings as JSON -> their host: all environments of a process share one engine."""


def acquire_host(settings: AppworldSettings) -> Host:
    """The host of these settings; give it back with :func:`release_host`."""
    key = settings.model_dump_json()
    if key not in _hosts:
        _hosts[key] = Host(settings)
    _hosts[key].users += 1
    return _hosts[key]


def release_host(host: Host) -> None:
    """The last one to give a host back ends its engine."""
    host.users -= 1
    if host.users == 0:
        for key in [key for key, other in _hosts.items() if other is host]:
            del _hosts[key]
        host.close()
