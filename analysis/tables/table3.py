"""Table 3: one rubric of the skill search_and_navigation for each environment, with an example from our rollouts.

The paper's illustrations are summaries [paper]; ours are excerpts of stored rollouts, picked by the rule of
``analysis.examples``.

    python -m analysis.tables.table3 --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis import published
from analysis.command import run_tables
from analysis.example_rows import example_text, frame_of, notes, record, share_text
from analysis.examples import pick
from analysis.formatting import Cell, Group, PrintedTable
from analysis.frames import Frames
from analysis.names import environment_name
from analysis.tables import BuiltTable

SKILL = "search_and_navigation"


def build(frames: Frames) -> list[BuiltTable]:
    """``table3``."""
    named = published.named_rubrics()
    rows, records = [], []
    for row in named[named["skill"] == SKILL].to_dict("records"):
        rubric, environment = str(row["rubric"]), str(row["environment"])
        found, counted = pick(frames, rubric, environment)
        texts = [environment_name(environment), rubric, str(row["illustration"]), example_text(found, counted)]
        rows.append([*map(Cell, texts), Cell(share_text(counted))])
        records.append(record({str(k): str(v) for k, v in row.items()}, found, counted))
    printed = PrintedTable(
        name="table3",
        caption=f"Table 3. Rubrics of the shared skill {SKILL}: the paper's illustration, and an example "
        "from our rollouts.",
        columns=["Environment", "Rubric", "Illustration (published)", "Example (this project)", "Share"],
        groups=[Group("", rows)],
        notes=notes(frames),
        text_columns=(2, 3),
        left_columns=(1,),
    )
    return [BuiltTable(printed, frame_of(records))]


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Table 3: rubrics of one skill", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
