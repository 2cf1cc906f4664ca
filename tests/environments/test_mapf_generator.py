"""Panels of MAPF-FrozenLake: shares, splits, wait instances, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_mapf_solver import brute_force, faults

from rised.environments.base import EnvironmentFault, Task
from rised.environments.mapf_frozenlake.cbs import solve
from rised.environments.mapf_frozenlake.generator import needs_wait, prepare, read_instance, shares
from rised.environments.mapf_frozenlake.grid import Grid, Instance, joint_move
from rised.environments.mapf_frozenlake.settings import MapfFrozenLakeSettings, MapKnobs


def maps(**knobs: Any) -> dict[str, MapKnobs]:
    return {name.removeprefix("size_"): MapKnobs(**value) for name, value in knobs.items()}


SMALL = MapfFrozenLakeSettings(
    train_maps=maps(
        size_3={"data": 1, "holes": 0.1, "wait": 0.5},
        size_4={"data": 3, "holes": 0.2, "wait": 0.25},
        size_9={"data": 0},
    ),
    validation_maps=maps(size_3={"holes": 0.1, "wait": 0.5}, size_5={"holes": 0.2, "wait": 0.0}),
    validation_agents=(2, 3),
)


@pytest.fixture(scope="module")
def panels() -> dict[str, list[Task]]:
    return {split: prepare(SMALL, split, 24, 7) for split in ("train", "validation")}


def make_up(tasks: list[Task]) -> Counter[tuple[int, int, bool]]:
    return Counter((len(t.payload["map"]), len(t.payload["starts"]), t.payload["wait"]) for t in tasks)


def test_sizes_agents_and_wait_instances_come_in_the_shares_that_the_settings_ask_for(
    panels: dict[str, list[Task]],
) -> None:
    assert make_up(panels["train"]) == {(3, 2, False): 3, (3, 2, True): 3, (4, 2, False): 14, (4, 2, True): 4}
    assert make_up(panels["validation"]) == {
        (3, 2, False): 3,
        (3, 2, True): 3,
        (3, 3, False): 3,
        (3, 3, True): 3,
        (5, 2, False): 6,
        (5, 3, False): 6,
    }
    assert {(len(t.payload["map"]), "".join(t.payload["map"]).count("H")) for t in panels["train"]} == {(3, 1), (4, 3)}


def test_a_wait_instance_has_no_optimal_plan_without_a_wait_and_every_task_its_optimum(
    panels: dict[str, list[Task]],
) -> None:
    for task in [*panels["train"][:12], *panels["validation"][:12]]:
        instance, best = read_instance(task.payload), task.payload["optimal_cost"]
        assert brute_force(instance) == best
        without = brute_force(instance, waits=False)
        assert task.payload["wait"] == (without is None or without > best)


def test_the_stored_plan_is_valid_and_leads_to_the_goals(panels: dict[str, list[Task]]) -> None:
    for task in panels["train"] + panels["validation"]:
        instance = read_instance(task.payload)
        trail = [instance.starts]
        for letters in task.payload["plan"]:
            after = joint_move(instance.grid, trail[-1], letters)
            assert all(isinstance(cell, int) for cell in after)
            trail.append(after)  # type: ignore[arg-type]
        assert faults(instance, tuple(zip(*trail, strict=True))) == []


def test_panels_are_reproducible_differ_by_seed_and_share_no_instance_in_any_orientation(
    panels: dict[str, list[Task]],
) -> None:
    assert prepare(SMALL, "train", 24, 7) == panels["train"]
    hashes = {split: {task.content_hash for task in tasks} for split, tasks in panels.items()}
    assert all(len(found) == 24 for found in hashes.values()) and not hashes["train"] & hashes["validation"]
    others = {task.content_hash for task in prepare(SMALL, "validation", 24, 8)}
    assert others != hashes["validation"] and not others & hashes["train"]


@given(st.permutations(range(3)), st.booleans(), st.booleans())
def test_the_content_hash_knows_no_orientation_and_no_order_of_agents(
    order: list[int], turned: bool, mirrored: bool
) -> None:
    size, holes, agents = 4, {1, 6}, [(0, 15), (5, 2), (12, 3)]

    def moved(cell: int) -> int:
        row, column = divmod(cell, size)
        row, column = (column, row) if turned else (row, column)
        return row * size + (size - 1 - column if mirrored else column)

    def instance(move: Any, pairs: list[tuple[int, int]]) -> Instance:
        grid = Grid(size, frozenset(map(move, holes)))
        return Instance(grid, tuple(move(a) for a, _ in pairs), tuple(move(b) for _, b in pairs))

    plain = instance(int, agents)
    assert instance(moved, [agents[i] for i in order]).content_hash == plain.content_hash
    assert instance(int, [(15, 0), *agents[1:]]).content_hash != plain.content_hash


def test_a_detour_of_equal_cost_makes_it_no_wait_instance() -> None:
    crossing = Instance(Grid.of_rows(["...", "...", "..."]), (3, 1), (5, 7))
    assert needs_wait(crossing, solve(crossing), 500) is True, "one of two that cross in the middle lets the other pass"
    apart = Instance(Grid.of_rows(["...", "...", "..."]), (0, 2), (6, 8))
    assert needs_wait(apart, solve(apart), 500) is False
    exchange = Instance(Grid.of_rows(["...", "...", "HHH"]), (0, 2), (2, 0))
    assert solve(exchange).cost == 6 and needs_wait(exchange, solve(exchange), 500) is False, "a detour costs 2 too"


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.integers(0, 50))
def test_shares_add_up_and_differ_from_the_exact_ones_by_less_than_one(weights: list[float], total: int) -> None:
    found = shares(weights, total)
    whole = sum(weights)
    assert sum(found) == (total if whole > 0 else 0)
    assert all(abs(n - total * w / whole) < 1 + 1e-6 for n, w in zip(found, weights, strict=True) if whole > 1e-3)


def test_more_instances_than_there_are_is_a_fault_that_names_the_size_and_its_knobs() -> None:
    scarce = MapfFrozenLakeSettings(train_maps=maps(size_3={"holes": 0.0, "wait": 1.0}))
    with pytest.raises(EnvironmentFault, match=r"3x3 maps with 0 holes and 2 agents .*train_maps\.3 \(wait, holes"):
        prepare(scarce, "train", 6, 0)
    with pytest.raises(EnvironmentFault, match="no split 'test'"):
        prepare(scarce, "test", 1, 0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"train_agents": (0,)}, "train_agents: different numbers from 1 to 10"),
        ({"validation_agents": (3, 3)}, "validation_agents: different numbers"),
        ({"train_maps": {"11": {}}}, "train_maps: sizes are 3 to 10, not 11"),
        ({"train_maps": {"3": {"data": 0}}}, "every data ratio is 0"),
        ({"validation_maps": {"3": {"holes": 0.5}}}, r"validation_maps\.3: 5 cells without a hole leave 5 agents"),
    ],
)
def test_knobs_that_make_no_panel_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        MapfFrozenLakeSettings(**values)


@pytest.mark.parametrize(
    "payload",
    [
        {"map": ["..", ".H"], "starts": [[1, 1]], "goals": [[0, 0]]},
        {"map": ["..", ".."], "starts": [[0, 2]], "goals": [[0, 0]]},
        {"map": ["..", ".."], "starts": [[0, 0], [0, 0]], "goals": [[1, 0], [0, 1]]},
        {"map": ["..", ".."], "starts": [[0, 0]], "goals": []},
    ],
)
def test_a_payload_that_is_no_instance_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no cell of ice|must be distinct"):
        read_instance(payload)
