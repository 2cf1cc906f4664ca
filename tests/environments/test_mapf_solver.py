"""Conflict-Based Search against an exhaustive search of the placements, and its plans against a plain checker."""

from __future__ import annotations

import heapq
import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rised.environments.mapf_frozenlake.cbs import DEFAULT_NODE_LIMIT, Outcome, Solution, feasible, solve
from rised.environments.mapf_frozenlake.grid import Cells, Grid, Instance, letters_of, sum_of_costs

Place = tuple[int, int]


@st.composite
def instances(draw: st.DrawFn, sizes: tuple[int, int] = (2, 3), agents: tuple[int, int] = (1, 3)) -> Instance:
    size = draw(st.integers(*sizes))
    count = draw(st.integers(*agents))
    cells = range(size * size)
    holes = draw(st.sets(st.sampled_from(cells), max_size=(size * size - count) // 2))
    free = [cell for cell in cells if cell not in holes]
    starts = draw(st.permutations(free))[:count]
    goals = draw(st.permutations(free))[:count]
    return Instance(Grid(size, frozenset(holes)), tuple(starts), tuple(goals))


def places(instance: Instance, cells: Cells) -> list[Place]:
    return [divmod(cell, instance.grid.size) for cell in cells]


def faults(instance: Instance, paths: tuple[Cells, ...]) -> list[str]:
    """What is wrong with a plan, by the rules written out once more in rows and columns."""
    found = []
    tracks = [places(instance, path) for path in paths]
    holes = set(places(instance, tuple(instance.grid.holes)))
    if [track[0] for track in tracks] != places(instance, instance.starts):
        found.append("starts")
    if [track[-1] for track in tracks] != places(instance, instance.goals):
        found.append("goals")
    for track in tracks:
        for row, column in track:
            if not (0 <= row < instance.grid.size and 0 <= column < instance.grid.size) or (row, column) in holes:
                found.append(f"off the ice at {row}, {column}")
        for (row, column), (next_row, next_column) in itertools.pairwise(track):
            if abs(row - next_row) + abs(column - next_column) > 1:
                found.append("a jump")
    for one, other in itertools.combinations(tracks, 2):
        if any(a == b for a, b in zip(one, other, strict=True)):
            found.append("a meeting")
        swaps = zip(itertools.pairwise(one), itertools.pairwise(other), strict=True)
        if any(a == b[::-1] and a[0] != a[1] for a, b in swaps):
            found.append("a swap")
    return found


def waits_before_arrival(paths: tuple[Cells, ...]) -> int:
    count = 0
    for path in paths:
        arrival = max([time + 1 for time, cell in enumerate(path) if cell != path[-1]], default=0)
        count += sum(a == b for a, b in itertools.pairwise(path[: arrival + 1]))
    return count


def brute_force(instance: Instance, waits: bool = True) -> int | None:
    """Least sum of costs by Dijkstra over (places, which agents are home for good); None if there is no plan.

    An agent declares itself home on its goal, and never moves again; until then every time step costs it 1.
    """
    size, holes = instance.grid.size, set(places(instance, tuple(instance.grid.holes)))
    goals = places(instance, instance.goals)
    start = (tuple(places(instance, instance.starts)), (False,) * len(goals))
    best, queue = {start: 0}, [(0, start)]
    while queue:
        cost, state = heapq.heappop(queue)
        if cost > best[state]:
            continue
        at, home = state
        if all(home):
            return cost
        for agent in range(len(goals)):
            if not home[agent] and at[agent] == goals[agent]:
                settled = (at, (*home[:agent], True, *home[agent + 1 :]))
                if cost < best.get(settled, cost + 1):
                    best[settled] = cost
                    heapq.heappush(queue, (cost, settled))
        choices = []
        for agent, (row, column) in enumerate(at):
            steps = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
            ends = [s for s in steps if 0 <= s[0] < size and 0 <= s[1] < size and s not in holes]
            choices.append([(row, column)] if home[agent] else ends + ([(row, column)] if waits else []))
        for after in itertools.product(*choices):
            pairs = list(itertools.combinations(range(len(goals)), 2))
            if any(after[i] == after[j] or (after[i] == at[j] and after[j] == at[i]) for i, j in pairs):
                continue
            following = (after, home)
            dearer = cost + home.count(False)
            if dearer < best.get(following, dearer + 1):
                best[following] = dearer
                heapq.heappush(queue, (dearer, following))
    return None


@settings(max_examples=250, deadline=None, derandomize=True)
@given(instances())
def test_plans_are_valid_and_cost_what_an_exhaustive_search_finds(instance: Instance) -> None:
    solution, best = solve(instance), brute_force(instance)
    if best is None:
        assert solution.outcome is Outcome.UNSOLVABLE
        return
    assert solution.outcome in (Outcome.OPTIMAL, Outcome.LIMIT)
    assume(solution.outcome is Outcome.OPTIMAL)
    assert faults(instance, solution.paths) == []
    assert solution.cost == best == sum_of_costs(zip(*solution.paths, strict=True), instance.goals)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(instances(agents=(2, 3)))
def test_a_search_without_waits_finds_the_cheapest_plan_of_that_kind(instance: Instance) -> None:
    best, limit = brute_force(instance, waits=False), 14
    solution = solve(instance, waits=False, cost_limit=limit)
    if best is None or best > limit:
        assert solution.outcome in (Outcome.UNSOLVABLE, Outcome.LIMIT)
        return
    assume(solution.outcome is not Outcome.LIMIT)
    assert (solution.outcome, solution.cost) == (Outcome.OPTIMAL, best)
    assert faults(instance, solution.paths) == [] and waits_before_arrival(solution.paths) == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(instances(sizes=(5, 10), agents=(2, 5)))
def test_on_large_maps_plans_are_valid_and_no_cheaper_than_the_agents_alone(instance: Instance) -> None:
    solution = solve(instance, node_limit=200)
    alone = [instance.grid.distances(g).get(s) for s, g in zip(instance.starts, instance.goals, strict=True)]
    if None in alone:
        assert solution.outcome is Outcome.UNSOLVABLE
    elif solution.outcome is Outcome.OPTIMAL:
        assert faults(instance, solution.paths) == []
        assert solution.cost >= sum(d for d in alone if d is not None)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(instances())
def test_feasibility_is_what_the_exhaustive_search_says(instance: Instance) -> None:
    assert feasible(instance) == (brute_force(instance) is not None)


def on(rows: list[str], *agents: tuple[int, int]) -> Instance:
    return Instance(Grid.of_rows(rows), tuple(a for a, _ in agents), tuple(b for _, b in agents))


def solved(rows: list[str], *agents: tuple[int, int]) -> Solution:
    return solve(on(rows, *agents))


def test_an_exchange_in_a_corridor_without_a_bay_is_unsolvable() -> None:
    assert solved(["...", "HHH", "HHH"], (0, 2), (2, 0)).outcome is Outcome.UNSOLVABLE


def test_a_bay_lets_two_agents_pass() -> None:
    rows = ["...", "H.H", "HHH"]
    solution = solved(rows, (0, 2), (2, 0))
    assert (solution.outcome, solution.cost) == (Outcome.OPTIMAL, brute_force(on(rows, (0, 2), (2, 0))))


def test_an_agent_at_its_goal_makes_way_and_comes_back() -> None:
    rows = ["....", "H.HH", "HHHH", "HHHH"]
    solution = solved(rows, (0, 3), (1, 1))
    assert solution.outcome is Outcome.OPTIMAL and faults(on(rows, (0, 3), (1, 1)), solution.paths) == []
    assert len(set(solution.paths[1])) > 1


def test_agents_turn_in_a_ring_without_waiting() -> None:
    assert solved(["..", ".."], (0, 1), (1, 3), (3, 2), (2, 0)).cost == 4


def test_a_goal_behind_holes_is_unsolvable_at_once() -> None:
    solution = solved([".H.", "HH.", "..."], (0, 2))
    assert (solution.outcome, solution.expanded) == (Outcome.UNSOLVABLE, 0)


def test_the_limit_of_nodes_is_an_outcome_of_its_own() -> None:
    crowded = on(["...", "...", "..."], *zip(range(8), (8, 7, 6, 5, 4, 3, 2, 1), strict=True))
    solution = solve(crowded, node_limit=30)
    assert (solution.outcome, solution.paths, solution.expanded) == (Outcome.LIMIT, (), 30)


def test_equal_instances_have_equal_plans() -> None:
    instance = on(["....", ".H..", "..H.", "...."], (0, 15), (15, 0), (3, 12))
    assert solve(instance) == solve(instance) and DEFAULT_NODE_LIMIT > solve(instance).expanded


def test_a_plan_is_written_as_one_letter_per_agent_and_time_step() -> None:
    solution = solved(["..", ".."], (0, 1), (3, 2))
    assert letters_of(Grid.of_rows(["..", ".."]), solution.paths) == ["rl"]


@pytest.mark.parametrize("rows", [["..", "."], ["..", ".x"]])
def test_a_map_that_is_not_square_or_has_other_marks_is_refused(rows: list[str]) -> None:
    with pytest.raises(ValueError, match="no square map"):
        Grid.of_rows(rows)
