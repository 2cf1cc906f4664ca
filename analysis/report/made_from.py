"""The list of what every table and figure was made from: kinds of records with their rows, and published numbers."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import MISSING, Cell, Group, PrintedTable
from analysis.sources import Sources


def made_from(sources: Sequence[Sources]) -> PrintedTable:
    """One row per table or figure."""
    rows = [
        [Cell(text) for text in (each.title, records_text(each), ", ".join(each.published) or MISSING)]
        for each in sources
    ]
    return PrintedTable(
        name="sources",
        caption="What every table and figure was made from: records of the runs with the rows read, and files of "
        "data/paper.",
        columns=["Table or figure", "Records", "Published numbers"],
        groups=[Group("", rows)],
        notes=["A kind that is read twice counts twice. Configurations and run headers are read by all."],
        text_columns=(1, 2),
        left_columns=(1, 2),
    )


def records_text(sources: Sources) -> str:
    """For example "metrics (1,204), validation (3,960)"; a dash where no record was read."""
    return ", ".join(f"{kind} ({rows:,})" for kind, rows in sources.records.items()) or MISSING
