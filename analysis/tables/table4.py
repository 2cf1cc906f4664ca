"""Table 4: a positive and a negative rubric on two ALFWorld tasks, with two rollouts of ours on one task each.

The paper invents its illustrations [paper]. Ours are two rollouts of one group (the same task, the same update) of
which one shows the positive rubric and the other the negative one; where no group has both, the rubrics are
illustrated apart and the table says so.

    python -m analysis.tables.table4 --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis import published
from analysis.command import run_tables
from analysis.example_rows import example_text, frame_of, notes, record, share_text
from analysis.examples import pick, pick_pair
from analysis.formatting import Cell, Group, PrintedTable
from analysis.frames import Frames
from analysis.tables import BuiltTable

ENVIRONMENT = "alfworld"
SITUATIONS = {
    "taking an apple fails because the fridge is closed": ("revises_plan_after_failure", "repeats_failed_action"),
    "the task requires placing a hot mug on a side table": (
        "uses_appliance_for_state_change",
        "ignores_task_constraint",
    ),
}
"""The paper's two tasks, and the positive and the negative rubric that it shows on each [paper]."""


def build(frames: Frames) -> list[BuiltTable]:
    """``table4``."""
    named = published.named_rubrics().set_index("rubric")
    groups, records, apart = [], [], []
    for situation, rubrics in SITUATIONS.items():
        pair = pick_pair(frames, *rubrics, ENVIRONMENT)
        singles = [pick(frames, rubric, ENVIRONMENT) for rubric in rubrics]
        if pair is None:
            apart.append(
                f"No group shows {' and '.join(rubrics)} in two rollouts: the examples are of different tasks."
            )
        rows = []
        for i, rubric in enumerate(rubrics):
            alone, counted = singles[i]
            found = pair[i] if pair else alone
            row = {str(k): str(v) for k, v in named.loc[rubric].items()} | {"rubric": rubric}
            texts = [row["skill"], rubric, row["illustration"], example_text(found, counted)]
            rows.append([*map(Cell, texts), Cell(share_text(counted))])
            records.append(record(row, found, counted))
        groups.append(Group(f"The paper's task: {situation}", rows))
    printed = PrintedTable(
        name="table4",
        caption="Table 4. Positive and negative rubrics on two ALFWorld tasks: the paper's illustration, "
        "and two of our "
        "rollouts on one task of ours.",
        columns=["Skill", "Rubric", "Illustration (published)", "Example (this project)", "Share"],
        groups=groups,
        notes=[*apart, *notes(frames)],
        text_columns=(2, 3),
        left_columns=(1,),
    )
    return [BuiltTable(printed, frame_of(records))]


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Table 4: positive and negative rubrics", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
