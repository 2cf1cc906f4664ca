"""How much the selections of different selectors overlap, from what `stages.select` replayed on finished runs. [ours]

Overlap is the Jaccard index of the groups that two selectors choose of one update's candidates: shared by chosen by
either, a mean over updates and runs. By chance stands the mean index of two random choices that take as many groups of
each environment as these two did (exact, hypergeometric): what quotas alone bring. Where neither takes a group of an
environment the index is undefined there and enters no mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from analysis import AnalysisError
from analysis.names import ordered_environments
from analysis.runs import Experiment
from analysis.sources import NotedReader
from rised.records.layout import RESELECTED

OWN = "own"
"""Tags of the run's own judge, as ``stages.select`` names them."""
OVERALL = "overall"
KEYS = ["selector_a", "tags_a", "selector_b", "tags_b", "environment"]
VALUES = ["updates", "undefined", "overlap", "chance"]

Choice = tuple[str, str]
"""Selector and whose tags it read ("" for none)."""
Sizes = tuple[tuple[int, int, int], ...]
"""Of each environment: candidates, chosen by one, chosen by the other."""


@dataclass(frozen=True)
class Overlaps:
    """``pairs``: columns KEYS and VALUES, each unordered pair once; ``environment`` "overall" is all candidates.

    ``choices``: those that read no tags first, then by the run's own; the catalogue's order within. ``runs``: how many
    were looked at.
    """

    pairs: pd.DataFrame
    choices: Sequence[Choice]
    environments: Sequence[str]
    runs: int
    gaps: Sequence[str]

    def of(self, first: Choice, second: Choice, environment: str = OVERALL) -> pd.Series | None:
        """The row of two choices in either order; None if they never met."""
        frame = self.pairs
        for a, b in ((first, second), (second, first)):
            found = frame[
                (frame["selector_a"] == a[0])
                & (frame["tags_a"] == a[1])
                & (frame["selector_b"] == b[0])
                & (frame["tags_b"] == b[1])
                & (frame["environment"] == environment)
            ]
            if len(found):
                return found.iloc[0]
        return None

    @property
    def own(self) -> list[Choice]:
        """Choices by the run's own tags or by none."""
        return [choice for choice in self.choices if choice[1] in ("", OWN)]

    @property
    def judges(self) -> list[str]:
        """Other judges whose tags chose."""
        return list(dict.fromkeys(tags for _, tags in self.choices if tags not in ("", OWN)))


def chance_index(sizes: Sizes) -> float:
    """Mean Jaccard index of two independent random choices with these numbers; NaN if both are empty."""
    return _chance(tuple(sorted(size for size in sizes if size[1] or size[2])))


@lru_cache(maxsize=1 << 14)
def _chance(sizes: Sizes) -> float:
    total = sum(a + b for _, a, b in sizes)
    if not total:
        return float("nan")
    shared_K = np.ones(1)  # probability of each number of shared groups
    for candidates, a, b in sizes:
        shared_K = np.convolve(shared_K, hypergeom(candidates, a, b).pmf(np.arange(min(a, b) + 1)))
    counts_K = np.arange(len(shared_K))
    return float((shared_K * counts_K / (total - counts_K)).sum())


def overlaps(experiment: Experiment) -> Overlaps:
    """Over all finished replays of an experiment's runs; AnalysisError if there is none."""
    parts: list[pd.DataFrame] = []
    choices: dict[Choice, None] = {}
    gaps, looked_at = [], 0
    for run in experiment.runs:
        folder = run.path / RESELECTED
        if not folder.is_dir():
            gaps.append(f"{run.label}: no selector was replayed on it")
            continue
        reader = NotedReader(folder)
        if not reader.done:
            gaps.append(f"{run.label}: the replay of selectors is unfinished")
            continue
        looked_at += 1
        found = chosen(reader)
        choices |= dict.fromkeys(found.columns)
        parts.append(compared(found))
        if not any(tags == OWN for _, tags in found.columns):
            gaps.append(f"{run.label}: no tags of its own, so that nothing was chosen by them")
    if not parts:
        raise AnalysisError(
            f"{experiment.path}: no selector was replayed on its runs: give the experiment the key `reselect`, or run "
            "`snakemake reselect`"
        )
    whole = pd.concat(parts, ignore_index=True)
    whole["weighted"] = whole["overlap"].fillna(0.0) * whole["updates"]
    whole["weighted_chance"] = whole["chance"].fillna(0.0) * whole["updates"]
    pairs = whole.groupby(KEYS, as_index=False, sort=False)[
        ["updates", "undefined", "weighted", "weighted_chance"]
    ].sum()
    counted = pairs["updates"].where(pairs["updates"] > 0)
    pairs["overlap"], pairs["chance"] = pairs["weighted"] / counted, pairs["weighted_chance"] / counted
    environments = [e for e in ordered_environments(pairs["environment"].unique()) if e != OVERALL]
    return Overlaps(pairs[[*KEYS, *VALUES]], _ordered(choices), environments, looked_at, gaps)


def _ordered(choices: Iterable[Choice]) -> list[Choice]:
    """By whose tags: none, the run's own, others; the catalogue's order within."""
    rank = {"": 0, OWN: 1}
    return sorted(choices, key=lambda choice: (rank.get(choice[1], 2), choice[1]))


def chosen(reader: NotedReader) -> pd.DataFrame:
    """Index step, environment, group_id; a column for each choice: 1.0 chosen, 0.0 not, NaN where nobody chose."""
    index, keys = ["step", "environment", "group_id"], ["selector", "tags"]
    frame = reader.scan("reselections", [*keys, *index, "selected"]).to_pandas()
    frame["selected"] = frame["selected"].astype("float64")
    order = list(dict.fromkeys(zip(frame["selector"], frame["tags"], strict=True)))
    return frame.pivot(index=index, columns=keys, values="selected")[order].sort_index()


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Every pair that is worth comparing in a run: two choices by the same tags or none, one selector by two judges."""
    steps = table.index.get_level_values("step").to_numpy()
    environment_N = table.index.get_level_values("environment").to_numpy()
    names = sorted(set(environment_N))
    first_of_cell = np.flatnonzero(np.r_[True, (steps[1:] != steps[:-1]) | (environment_N[1:] != environment_N[:-1])])
    cells = list(zip(steps[first_of_cell], environment_N[first_of_cell], strict=True))
    counts = np.add.reduceat(np.ones(len(table)), first_of_cell)
    rows: list[dict[str, object]] = []
    for one, two in combinations(table.columns, 2):
        if not comparable(one, two):
            continue
        a_N, b_N = table[one].to_numpy(), table[two].to_numpy()
        by_cell = [np.add.reduceat(values, first_of_cell) for values in (a_N, b_N, a_N * b_N)]
        found = zip(cells, counts, *by_cell, strict=True)
        per_step: dict[int, dict[str, tuple[int, int, int, int]]] = {}
        for (step, environment), n, a, b, both in found:
            if not np.isnan(both):
                per_step.setdefault(step, {})[environment] = (int(n), int(a), int(b), int(both))
        for environment in [OVERALL, *names]:
            wanted = names if environment == OVERALL else [environment]
            rows.append(_row(one, two, environment, list(_indices(per_step.values(), wanted))))
    return pd.DataFrame(rows, columns=[*KEYS, *VALUES])


def comparable(one: Choice, two: Choice) -> bool:
    """Other selectors by the same tags, or the same selector by other tags."""
    same_tags = "" in (one[1], two[1]) or one[1] == two[1]
    own_or_none = one[1] in ("", OWN) and two[1] in ("", OWN)
    return (same_tags and own_or_none) or (one[0] == two[0] and one[1] != two[1])


def _indices(
    steps: Iterable[dict[str, tuple[int, int, int, int]]], environments: Sequence[str]
) -> Iterator[tuple[float, float]]:
    """Index and the index by chance of each update, over some of its environments."""
    for cells in steps:
        here = [cells[name] for name in environments if name in cells]
        if not here:
            continue
        either = sum(a + b - both for _, a, b, both in here)
        index = sum(both for *_, both in here) / either if either else float("nan")
        yield index, chance_index(tuple((n, a, b) for n, a, b, _ in here))


def _row(one: Choice, two: Choice, environment: str, indices: Sequence[tuple[float, float]]) -> dict[str, object]:
    pairs_N2 = np.array(indices, dtype=np.float64).reshape(-1, 2)
    defined = ~np.isnan(pairs_N2[:, 0])
    overlap, chance = pairs_N2[defined].mean(axis=0) if defined.any() else (float("nan"), float("nan"))
    values = (*one, *two, environment, int(defined.sum()), int((~defined).sum()), float(overlap), float(chance))
    return dict(zip([*KEYS, *VALUES], values, strict=True))
