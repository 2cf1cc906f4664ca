"""Tasks: panels of generated games, or the real games that a user has downloaded, as rows for tasks.parquet.

A generated game belongs to the split that its errand names (what to bring where, in which scene), so that no two
splits share an errand, whatever their seeds; nor has a panel one twice. The payload says ``synthetic`` and carries the
grounded problem, so that a first reset is cheap.
Real games are read from ``game.tw-pddl`` and ``traj_data.json``.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import random
from collections import OrderedDict
from collections.abc import Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rised.environments.alfworld.engine import GameGraph, Translation, translate
from rised.environments.alfworld.generation import APPLIANCES, TASK_TYPES, Game, UnusableDraw, generate
from rised.environments.alfworld.grammar import goal_of, load_grammar
from rised.environments.alfworld.settings import AlfworldSettings
from rised.environments.alfworld.world import Goal, World
from rised.environments.base import EnvironmentFault, Task
from rised.records.text import load_json

GAME_FILE, TRAJECTORY_FILE = "game.tw-pddl", "traj_data.json"
_DATA_FOLDER = "json_2.1.1"
"""Folder of the downloaded games; a games_dir may be this folder or the one that holds it."""
_SHARES = {"validation": range(0, 48), "test": range(48, 64), "sft": range(64, 112), "train": range(112, 256)}
"""Which first bytes of an errand's hash belong to which split; ``sft`` is for demonstrations."""
_DRAWS = 2_000
_TASKS_PER_WORKER = 24
"""A panel so small that starting a process takes longer is drawn in this one."""
_FIELDS = ("goal", "problem", "task_type", "object", "receptacle", "toggle", "appliance")


def goal_text(task: Task) -> str:
    """The goal sentence of a task."""
    return str(task.payload["goal"])


def _goal(payload: dict[str, Any]) -> Goal:
    words = {key: str(payload[key]).lower() for key in ("object", "receptacle", "toggle", "appliance")}
    return Goal(str(payload["task_type"]), **words)


class _Worlds:
    """The games of this process, least recently used first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], World] = OrderedDict()

    def get(self, task: Task, settings: AlfworldSettings) -> World:
        key = (task.content_hash, settings.grammar)
        world = self._kept.pop(key, None)
        if world is None:
            payload = task.payload
            grammar = load_grammar(settings.grammar)
            if payload.get("translation") and payload.get("grammar") == settings.grammar:
                translation = Translation.unpacked(str(payload["translation"]))
            else:
                translation = translate(str(payload["problem"]), grammar)
            world = World(GameGraph(translation, str(payload["goal"]), grammar), _goal(payload))
        self._kept[key] = world
        while len(self._kept) > settings.cached_games:
            self._kept.popitem(last=False)
        return world


_WORLDS = _Worlds()


def load_world(task: Task, settings: AlfworldSettings) -> World:
    """The game of a task, with all that this process has explored of it."""
    missing = [name for name in _FIELDS if name not in task.payload]
    if missing:
        raise EnvironmentFault(
            f"alfworld task {task.task_id!r}: the payload lacks {', '.join(missing)}; prepare the task panel again"
        )
    return _WORLDS.get(task, settings)


def prepare(settings: AlfworldSettings, split: str, count: int, seed: int) -> list[Task]:
    """``count`` tasks of a split: generated ones balanced over the six types, or the first ``count`` of the index."""
    return _files(settings, split, count) if settings.source == "files" else _generated(settings, split, count, seed)


def content_hash(problem: str, goal: str) -> str:
    """SHA-256 of what makes a game the same game."""
    return hashlib.sha256(f"{goal}\n{problem}".encode()).hexdigest()


def errand(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """What is to be brought where, and in which scene; the objects' places and the goal's wording are left out.

    Scenes of real games are not known to the payload, and are left out as well.
    """
    return tuple(str(payload.get(key, "")) for key in ("task_type", "object", "receptacle", "toggle", "scene"))


def split_byte(payload: Mapping[str, Any]) -> int:
    """First byte of the hash of a generated game's errand, which names its split."""
    return hashlib.sha256("|".join(errand(payload)).encode()).digest()[0]


def _generated(settings: AlfworldSettings, split: str, count: int, seed: int) -> list[Task]:
    """The panel does not depend on the number of processes: a task follows from its index alone."""
    if split not in _SHARES:
        raise EnvironmentFault(f"alfworld: no generated split {split!r}; there are {', '.join(_SHARES)}")
    draw = functools.partial(_draw_task, settings, split, seed)
    workers = min(settings.prepare_workers, count // _TASKS_PER_WORKER)
    if workers > 1 and not multiprocessing.current_process().daemon:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            drawn = list(pool.map(draw, range(count), chunksize=8))
    else:
        drawn = [draw(index) for index in range(count)]
    tasks: list[Task] = []
    known: set[tuple[str, ...]] = set()
    for index, task in enumerate(drawn):
        while errand(task.payload) in known:
            task = draw(index, known)
        known.add(errand(task.payload))
        tasks.append(task)
    return tasks


def _draw_task(
    settings: AlfworldSettings, split: str, seed: int, index: int, known: Collection[tuple[str, ...]] = frozenset()
) -> Task:
    """The first solvable game of the split among the draws of one index, whose errand is not a known one."""
    task_type = TASK_TYPES[index % len(TASK_TYPES)]
    grammar = load_grammar(settings.grammar)
    for attempt in range(_DRAWS):
        name = f"alfworld/{split}/{seed}/{index}/{attempt}"
        try:
            game = generate(task_type, settings.room, random.Random(name))
        except UnusableDraw:
            continue
        drawn_errand = {key: getattr(game, key) for key in ("task_type", "object", "receptacle", "toggle", "scene")}
        if errand(drawn_errand) in known or split_byte(drawn_errand) not in _SHARES[split]:
            continue
        digest = content_hash(game.problem, game.goal)
        translated = {"translation": translate(game.problem, grammar).packed(), "grammar": settings.grammar}
        drawn = int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)
        task = _task(game, split, index, drawn, digest, translated)
        if _is_solvable(settings, task):
            return task
    raise EnvironmentFault(
        f"alfworld: no further solvable {task_type} game of the split {split!r} in {_DRAWS} draws: ask for fewer than "
        f"the {index} tasks so far, or raise room.max_receptacles or max_turns"
    )


def _task(game: Game, split: str, index: int, seed: int, digest: str, translated: dict[str, str]) -> Task:
    payload = {
        "source": "generated",
        "synthetic": True,
        "goal": game.goal,
        "problem": game.problem,
        "task_type": game.task_type,
        "object": game.object,
        "receptacle": game.receptacle,
        "toggle": game.toggle,
        "appliance": game.appliance,
        "scene": game.scene,
        **translated,
    }
    return Task("alfworld", split, f"alfworld-{split}-{index:05d}-{digest[:8]}", seed, payload, digest)


def _is_solvable(settings: AlfworldSettings, task: Task) -> bool:
    """Whether the direct plan wins on the engine within the turns, and the game is not won from the start."""
    from rised.environments.alfworld import expert
    from rised.environments.alfworld.environment import Alfworld

    environment = Alfworld(settings)
    environment.reset(task, 0)
    plan = expert.direct_plan(environment)
    state = environment.state
    if state.won or not 0 < len(plan) <= settings.max_turns:
        return False
    for command in plan:
        if command not in state.commands:
            return False
        state = environment.world.graph.follow(state, command).state
    return bool(state.won)


def _root(settings: AlfworldSettings) -> Path:
    root = settings.games_dir or (Path(os.environ["ALFWORLD_DATA"]) if "ALFWORLD_DATA" in os.environ else None)
    if root is None or not root.is_dir():
        raise EnvironmentFault(
            f"alfworld: no games at {root}: run `alfworld-download` and set `games_dir` or ALFWORLD_DATA, "
            "or use source: generated"
        )
    return root


def _index(settings: AlfworldSettings, split: str, root: Path) -> list[Path]:
    """Game folders in index order: AgentBench's split file flattened in file order, or sorted folders."""
    index = settings.index_file.get(split)
    if index is None:
        found = sorted(path.parent for path in _below(root, split).rglob(GAME_FILE))
        if not found:
            raise EnvironmentFault(f"alfworld: no {GAME_FILE} below {root / split}; set index_file for {split!r}")
        return found
    try:
        families: dict[str, list[str]] = load_json(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"alfworld: cannot read the index {index}: {error}") from error
    return [_game_folder(root, path) for paths in families.values() for path in paths]


def _game_folder(root: Path, entry: str) -> Path:
    """Folder of an index entry, which names the folder or (as AgentBench's files do) the game file in it."""
    return _below(root, entry.removesuffix(f"/{GAME_FILE}"))


def _below(root: Path, path: str) -> Path:
    """``root / path``, or where that is missing the same with or without the ``json_2.1.1`` part."""
    inner = path.removeprefix(f"{_DATA_FOLDER}/")
    candidates = (root / path, root / inner, root / _DATA_FOLDER / inner)
    return next((folder for folder in candidates if folder.is_dir()), root / path)


def _files(settings: AlfworldSettings, split: str, count: int) -> list[Task]:
    root = _root(settings)
    folders = _index(settings, split, root)
    if len(folders) < count:
        raise EnvironmentFault(f"alfworld: {count} tasks wanted, the {split} index has {len(folders)}")
    return [_read_game(folder, root, split, number) for number, folder in enumerate(folders[:count])]


def _read_game(folder: Path, root: Path, split: str, number: int) -> Task:
    try:
        game = load_json((folder / GAME_FILE).read_text(encoding="utf-8"))
        trajectory = load_json((folder / TRAJECTORY_FILE).read_text(encoding="utf-8"))
        parameters = trajectory["pddl_params"]
        task_type = str(trajectory["task_type"])
        problem, goal = str(game["pddl_problem"]), goal_of(game["grammar"])
        words = {
            "object": parameters["object_target"],
            "receptacle": parameters["parent_target"],
            "toggle": parameters["toggle_target"],
        }
    except (OSError, ValueError, KeyError) as error:
        raise EnvironmentFault(f"alfworld: cannot read the game in {folder}: {error!r}") from error
    payload = {
        "source": "files",
        "synthetic": bool(trajectory.get("synthetic", False)),
        "goal": goal,
        "problem": problem,
        "task_type": task_type,
        **words,
        "appliance": APPLIANCES.get(task_type, ""),
        "folder": folder.relative_to(root).as_posix(),
    }
    digest = content_hash(problem, goal)
    return Task("alfworld", split, f"alfworld-{split}-{number:05d}-{digest[:8]}", number, payload, digest)
