"""How much the groups overlap that different selectors choose of the same candidates, and that one selector chooses by
the tags of different judges. [ours]

Two tables: every pair of selectors, overall and by environment (``selector_overlap``), and, where other judges have
tagged the runs, each selector by their tags against the run's own (``selector_overlap_judges``).

    python -m analysis.tables.selector_overlap --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import scale
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable, percent
from analysis.frames import Frames
from analysis.names import environment_name
from analysis.overlaps import OVERALL, OWN, Choice, Overlaps, overlaps
from analysis.tables import BuiltTable

READING = (
    "Overlap: groups that both choose, of those that either chooses (Jaccard), means over updates. In brackets: two "
    "random choices that take as many groups of each environment as these do."
)


def build(frames: Frames) -> list[BuiltTable]:
    """One or two tables; AnalysisError if no selector was replayed."""
    found = overlaps(frames.experiment)
    notes = notes_of(found, frames)
    tables = [_selectors(found, notes)]
    return [*tables, _judges(found, notes)] if found.judges else tables


def notes_of(found: Overlaps, frames: Frames) -> list[str]:
    """What stands below table and figure."""
    updates = int(found.pairs.loc[found.pairs["environment"] == OVERALL, "updates"].max())
    return [
        READING,
        f"Updates: {updates}, runs: {found.runs}. One seeded permutation of the candidates breaks the ties of every "
        "selector and is the random choice: those with many ties overlap a little more than by chance.",
        f"Runs: {scale.describe(frames.experiment)}.",
        *found.gaps,
    ]


def name_of(choice: Choice) -> str:
    """The selector, and whose tags it read if not the run's own."""
    selector, tags = choice
    return selector if tags in ("", OWN) else f"{selector} by {tags}"


def overlap_text(row: pd.Series | None) -> str:
    """ "62% (33%)": overlap and by chance; the missing mark for a pair that never met."""
    if row is None or pd.isna(row["overlap"]):
        return MISSING
    return f"{percent(row['overlap'])} ({percent(row['chance'])})"


def _selectors(found: Overlaps, notes: Sequence[str]) -> BuiltTable:
    groups = []
    for environment in [OVERALL, *found.environments]:
        rows = []
        for place, one in enumerate(found.own[1:], 1):
            cells = [Cell(overlap_text(found.of(one, two, environment))) for two in found.own[:place]]
            rows.append([Cell(name_of(one)), *cells, *[Cell("")] * (len(found.own) - 1 - place)])
        groups.append(Group(environment_name(environment), rows))
    own = found.pairs[found.pairs["tags_a"].isin(["", OWN]) & found.pairs["tags_b"].isin(["", OWN])]
    printed = PrintedTable(
        name="selector_overlap",
        caption="Overlap of the groups that different selectors choose of the same candidates.",
        columns=["Selector", *map(name_of, found.own[:-1])],
        groups=groups,
        notes=notes,
    )
    return BuiltTable(printed, own)


def _judges(found: Overlaps, notes: Sequence[str]) -> BuiltTable:
    sources = [OWN, *found.judges]
    groups, columns = [], ["Selector", "Updates", "Overall", *map(environment_name, found.environments)]
    for number, first in enumerate(sources):
        for second in sources[number + 1 :]:
            rows = []
            for selector in dict.fromkeys(name for name, tags in found.choices if tags == second):
                pair = (selector, first), (selector, second)
                whole = found.of(*pair)
                if whole is None:
                    continue
                cells = [Cell(overlap_text(found.of(*pair, e))) for e in [OVERALL, *found.environments]]
                rows.append([Cell(selector), Cell(str(int(whole["updates"]))), *cells])
            if rows:
                named = "the run's own tags" if first == OWN else first
                groups.append(Group(f"By {named} and by {second}", rows))
    printed = PrintedTable(
        name="selector_overlap_judges",
        caption="Overlap of the groups that one selector chooses by the tags of two judges.",
        columns=columns,
        groups=groups,
        notes=notes,
    )
    frame = found.pairs
    return BuiltTable(printed, frame[~(frame["tags_a"].isin(["", OWN]) & frame["tags_b"].isin(["", OWN]))])


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Overlap of selectors", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
