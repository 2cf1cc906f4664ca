"""Overlap of selections and what chance would give, against enumeration; runs without replays are named or refused."""

from __future__ import annotations

import math
from itertools import combinations, product
from pathlib import Path

import pytest

from analysis import AnalysisError
from analysis.figures import selector_overlap as figure
from analysis.figures.style import DARK, png_bytes
from analysis.frames import Frames
from analysis.overlaps import chance_index, overlaps
from analysis.runs import find_experiment
from analysis.synthetic import write_experiment
from analysis.tables import selector_overlap as table
from rised.records.commit import RunDirectory
from rised.records.schemas import to_table
from rised.records.types import Reselection

GROUPS = {"alfworld": 3, "webshop": 2}


def enumerated(sizes: list[tuple[int, int, int]]) -> float:
    """The mean index over all pairs of choices."""
    one, two = (
        [
            frozenset().union(*parts)
            for parts in product(
                *[[frozenset((e, i) for i in c) for c in combinations(range(n), k[which])] for e, (n, *k) in numbered]
            )
        ]
        for numbered, which in ((list(enumerate(sizes)), 0), (list(enumerate(sizes)), 1))
    )
    indices = [len(a & b) / len(a | b) for a in one for b in two]
    return sum(indices) / len(indices)


@pytest.mark.parametrize(
    "sizes",
    [[(4, 2, 2)], [(5, 3, 1)], [(3, 2, 1), (4, 1, 3)], [(2, 2, 0), (3, 1, 2)], [(3, 1, 1), (3, 1, 1), (2, 1, 1)]],
)
def test_the_index_by_chance_is_the_mean_over_all_choices_with_these_numbers(sizes: list[tuple[int, int, int]]) -> None:
    assert chance_index(tuple(sizes)) == pytest.approx(enumerated(sizes))


def test_two_empty_choices_have_no_index() -> None:
    assert math.isnan(chance_index(((3, 0, 0),)))


def replay(run: Path, chosen: dict[tuple[str, str], list[set[str]]], finish: bool = True) -> None:
    """Write replays: (selector, tags) -> the groups chosen in each update from 1 on."""
    names = [(e, f"{e}-{i}") for e, count in GROUPS.items() for i in range(count)]
    with RunDirectory(run / "reselected") as out:
        out.recover()
        out.write_header({"config_hash": "", "vocabulary_hash": ""})
        out.write_config("{}")
        steps = range(1, 1 + max(map(len, chosen.values())))
        for step in steps:
            rows = []
            for (selector, tags), sets in chosen.items():
                if step > len(sets):
                    continue
                order = {name: i for i, name in enumerate(sorted(sets[step - 1]))}
                rows += [
                    Reselection(step, selector, tags, "", name, e, name in order, order.get(name), None, None, None)
                    for e, name in names
                ]
            with out.step(step) as record:
                record.write("reselections", to_table(rows))
                record.commit()
        if finish:
            out.finish(max(steps))


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    return write_experiment(tmp_path, ("rised",), (0, 1), updates=2, tasks=4)


def test_overlap_is_a_mean_over_updates_and_runs_overall_and_by_environment(experiment: Path) -> None:
    one, two = {"alfworld-0", "webshop-0"}, {"alfworld-0", "webshop-1"}
    replay(experiment / "rised" / "seed-0", {("random", ""): [one, one], ("profile", "own"): [two, one]})
    replay(experiment / "rised" / "seed-1", {("random", ""): [{"alfworld-1"}], ("profile", "own"): [{"alfworld-1"}]})
    found = overlaps(find_experiment(experiment))
    row = found.of(("profile", "own"), ("random", ""))
    assert row is not None and row["updates"] == 3 and row["overlap"] == pytest.approx((1 / 3 + 1 + 1) / 3)
    expected = (2 * enumerated([(3, 1, 1), (2, 1, 1)]) + enumerated([(3, 1, 1)])) / 3
    assert row["chance"] == pytest.approx(expected)
    shop = found.of(("random", ""), ("profile", "own"), "webshop")
    assert shop is not None and (shop["updates"], shop["undefined"], shop["overlap"]) == (2, 1, 0.5)
    assert found.environments == ["alfworld", "webshop"] and found.runs == 2


def test_one_selector_by_two_judges_is_compared_and_two_selectors_by_other_judges_are_not(experiment: Path) -> None:
    one = [{"alfworld-0"}]
    chosen = {("random", ""): one, ("profile", "own"): one, ("profile", "big"): one, ("herding", "big"): one}
    replay(experiment / "rised" / "seed-0", chosen)
    frames = Frames(find_experiment(experiment))
    found = overlaps(frames.experiment)
    assert found.of(("profile", "own"), ("profile", "big")) is not None
    assert found.of(("herding", "big"), ("profile", "big")) is None
    selectors, judges = table.build(frames)
    assert [row[0].text for row in judges.printed.groups[0].rows] == ["profile"]
    assert "GRPO" not in judges.printed.notes and any("no selector was replayed" in n for n in selectors.printed.notes)
    assert png_bytes(figure.build(frames).draw(DARK), 40)[:4] == b"\x89PNG"


def test_updates_that_a_selector_did_not_see_enter_no_mean_of_it(experiment: Path) -> None:
    one = {"alfworld-0"}
    replay(experiment / "rised" / "seed-0", {("random", ""): [one, one], ("profile", "own"): [one]})
    row = overlaps(find_experiment(experiment)).of(("random", ""), ("profile", "own"))
    assert row is not None and row["updates"] == 1


def test_an_experiment_without_replays_is_refused_and_an_unfinished_one_is_named(experiment: Path) -> None:
    with pytest.raises(AnalysisError, match="no selector was replayed on its runs"):
        table.build(Frames(find_experiment(experiment)))
    one = [{"alfworld-0"}]
    replay(experiment / "rised" / "seed-0", {("random", ""): one, ("global_variance", ""): one})
    replay(experiment / "rised" / "seed-1", {("random", ""): one}, finish=False)
    gaps = overlaps(find_experiment(experiment)).gaps
    assert "RISED seed 1: the replay of selectors is unfinished" in gaps
    assert "RISED seed 0: no tags of its own, so that nothing was chosen by them" in gaps
