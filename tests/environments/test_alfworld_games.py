"""ALFWorld's task panels: balance, separation of splits, determinism, and real game folders through the same code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from rised.environments.alfworld import AlfworldSettings, prepare
from rised.environments.alfworld.environment import Alfworld
from rised.environments.alfworld.games import _index, errand, split_byte
from rised.environments.alfworld.grammar import goal_of, load_grammar
from rised.environments.alfworld.settings import RoomSettings
from rised.environments.base import EnvironmentFault, Task

SETTINGS = AlfworldSettings(prompt_style="compact")


@pytest.fixture(scope="module")
def train() -> list[Task]:
    return prepare(SETTINGS, "train", 14, seed=1)


def write_game(folder: Path, task: Task, grammar: str) -> None:
    folder.mkdir(parents=True)
    shape = load_grammar(grammar)
    game = {
        "pddl_domain": shape.domain,
        "grammar": shape.with_goal(str(task.payload["goal"])),
        "pddl_problem": task.payload["problem"],
        "solvable": True,
        "walkthrough": None,
    }
    parameters = {
        "object_target": task.payload["object"],
        "parent_target": task.payload["receptacle"],
        "toggle_target": task.payload["toggle"],
        "mrecep_target": "",
        "object_sliced": False,
    }
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    trajectory = {"task_type": task.payload["task_type"], "pddl_params": parameters, "synthetic": True}
    (folder / "traj_data.json").write_text(json.dumps(trajectory))


def test_a_panel_is_balanced_over_the_six_types(train: list[Task]) -> None:
    counts = Counter(task.payload["task_type"] for task in train)
    assert len(counts) == 6 and max(counts.values()) - min(counts.values()) <= 1
    assert all(task.payload["synthetic"] is True and task.payload["source"] == "generated" for task in train)
    assert len({task.task_id for task in train}) == len(train)


def test_the_same_seed_gives_the_same_panel_and_another_seed_another(train: list[Task]) -> None:
    assert prepare(SETTINGS, "train", 6, seed=1) == train[:6]
    other = prepare(SETTINGS, "train", 6, seed=2)
    assert not {task.content_hash for task in other} & {task.content_hash for task in train}


def test_the_number_of_processes_does_not_change_a_panel(train: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rised.environments.alfworld.games._TASKS_PER_WORKER", 4)
    assert prepare(SETTINGS.model_copy(update={"prepare_workers": 2}), "train", 8, seed=1) == train[:8]


def test_splits_cannot_share_an_errand_whatever_their_seeds_and_a_panel_repeats_none(
    train: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    panels = [train, prepare(SETTINGS, "validation", 12, seed=1), prepare(SETTINGS, "sft", 12, seed=1)]
    shares = [range(112, 256), range(0, 48), range(64, 112)]
    for panel, share in zip(panels, shares, strict=True):
        assert all(split_byte(task.payload) in share for task in panel)
    errands = [errand(task.payload) for panel in panels for task in panel]
    assert len(set(errands)) == len(errands) == 38
    draws = iter([(train[0], ()), (train[0], ()), (train[1], {errand(train[0].payload)})])

    def draw(settings: object, split: str, seed: int, index: int, known: Collection[object] = ()) -> Task:
        drawn, refused = next(draws)
        assert known == refused
        return drawn

    monkeypatch.setattr("rised.environments.alfworld.games._draw_task", draw)
    assert prepare(SETTINGS, "train", 2, seed=1) == train[:2], "the second draw repeats the first, and is drawn again"
    with pytest.raises(EnvironmentFault, match="no generated split 'trian'"):
        prepare(SETTINGS, "trian", 1, seed=1)


def test_rooms_keep_to_their_size_and_their_receptacles_stand_apart(train: list[Task]) -> None:
    environment = Alfworld(SETTINGS)
    for task in train:
        environment.reset(task, 0)
        world = environment.world
        assert len(world.receptacles) <= 8
        assert len(world.objects) <= 6 + 3
        assert not environment.state.won
        for place in world.receptacles:
            assert world.view(world.graph.follow(environment.state, f"go to {place}").state).at == (place,)


def test_a_bigger_room_is_a_setting() -> None:
    settings = SETTINGS.model_copy(update={"room": RoomSettings(max_receptacles=20, max_distractors=15)})
    environment = Alfworld(settings)
    sizes = []
    for task in prepare(settings, "train", 3, seed=3):
        environment.reset(task, 0)
        sizes.append(len(environment.world.receptacles))
        for reply in environment.expert(0, 0.0):
            result = environment.step(reply)
        assert result.success
    assert max(sizes) > 8


def test_game_folders_are_read_in_the_index_order_and_play_alike(train: list[Task], tmp_path: Path) -> None:
    paths = [f"json_2.1.1/train/game-{number}/trial" for number in range(4)]
    for number, path in enumerate(paths):
        write_game(tmp_path / path, train[number], "alfworld" if number == 1 else "agentbench")
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"pick_two": [paths[3], paths[0]], "clean": [paths[1], paths[2]]}))
    settings = AlfworldSettings(source="files", prompt_style="compact", games_dir=tmp_path, index_file={"train": index})
    tasks = prepare(settings, "train", 4, seed=0)
    assert [task.payload["problem"] for task in tasks] == [train[i].payload["problem"] for i in (3, 0, 1, 2)]
    assert all(task.payload["source"] == "files" for task in tasks)
    mine, theirs = Alfworld(SETTINGS), Alfworld(settings)
    for task, original in zip(tasks, (train[i] for i in (3, 0, 1, 2)), strict=True):
        # Another hash, so that the process does not reuse the generated task's game.
        assert theirs.reset(replace(task, content_hash=f"file {task.content_hash}"), 0) == mine.reset(original, 0)
        for reply in theirs.expert(3, 0.2):
            result = theirs.step(reply)
            assert result == mine.step(reply)
        assert result.success


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("form", ["{}", "{}/game.tw-pddl"])
def test_agentbenchs_entries_are_found_from_either_games_dir(
    train: list[Task], tmp_path: Path, inside: bool, form: str
) -> None:
    entries = [
        "json_2.1.1/valid_unseen/pick_and_place_simple-Pencil-None-Shelf-308/trial_T20190908_121952_610012",
        "json_2.1.1/valid_unseen/pick_and_place_simple-PepperShaker-None-Drawer-10/trial_T20190918_154424_844749",
        "json_2.1.1/valid_unseen/pick_and_place_simple-Watch-None-Safe-219/trial_T20190907_074643_810052",
    ]
    for number, entry in enumerate(entries):
        write_game(tmp_path / entry, train[number], "agentbench")
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"pick": [form.format(entry) for entry in entries]}))
    root = tmp_path / "json_2.1.1" if inside else tmp_path
    settings = AlfworldSettings(source="files", games_dir=root, index_file={"validation": index})
    tasks = prepare(settings, "validation", 3, seed=0)
    assert [task.payload["problem"] for task in tasks] == [task.payload["problem"] for task in train[:3]]
    index.write_text(json.dumps({"pick": [form.format(entry.removeprefix("json_2.1.1/")) for entry in entries]}))
    assert prepare(settings, "validation", 3, seed=0) == tasks
    unindexed = AlfworldSettings(source="files", games_dir=root)
    assert len(prepare(unindexed, "valid_unseen", 3, seed=0)) == 3


def test_missing_or_broken_folders_are_named(
    train: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(EnvironmentFault, match="alfworld-download"):
        prepare(AlfworldSettings(source="files"), "train", 1, seed=0)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"no game.tw-pddl"):
        prepare(AlfworldSettings(source="files"), "train", 1, seed=0)
    write_game(tmp_path / "train/a/b", train[0], "agentbench")
    with pytest.raises(EnvironmentFault, match="2 tasks wanted"):
        prepare(AlfworldSettings(source="files"), "train", 2, seed=0)
    (tmp_path / "train/a/b/traj_data.json").write_text('{"task_type":\n"\\ud800"}')
    with pytest.raises(EnvironmentFault, match=r"train/a/b.*half a character.*line 2"):
        prepare(AlfworldSettings(source="files"), "train", 1, seed=0)
    (tmp_path / "train/a/b/traj_data.json").write_text('{"task_type": "x"}')
    with pytest.raises(EnvironmentFault, match=r"train/a/b.*pddl_params"):
        prepare(AlfworldSettings(source="files"), "train", 1, seed=0)


def test_a_split_file_of_agentbench_flattens_to_folders_in_its_order(excerpts_dir: Path) -> None:
    index = excerpts_dir / "alfworld_train_valid.json"
    families = json.loads(index.read_text())
    assert list(families) == [
        *("pick_and_place", "pick_clean_then_place", "pick_heat_then_place", "pick_cool_then_place"),
        *("look_at_obj", "pick_two_obj"),
    ]
    folders = _index(AlfworldSettings(index_file={"x": index}), "x", Path("/games"))
    assert folders == [Path("/games") / Path(path).parent for paths in families.values() for path in paths]
    assert len(folders) == 12


def test_agentbenchs_split_files_flatten_to_their_published_sizes(shared_dir: Path) -> None:
    for name, count in (("train_valid", 3150), ("new_std", 109)):
        index = shared_dir / "data" / f"alfworld_split_{name}.json"
        folders = _index(AlfworldSettings(index_file={"x": index}), "x", Path("/games"))
        assert len(folders) == count
        first = next(iter(json.loads(index.read_text()).values()))[0]
        assert first.endswith("/game.tw-pddl") and folders[0] == Path("/games") / Path(first).parent


def test_the_goal_is_read_out_of_a_game_files_grammar() -> None:
    for name in ("agentbench", "alfworld"):
        assert goal_of(load_grammar(name).with_goal("put a hot egg in fridge")) == "put a hot egg in fridge"
