"""ORSD Table 1: success on ALFWorld by task type, WebShop score and success, in percent.

Rows that the ORSD paper quotes from other papers carry a dagger. Ours are ORSD, its variants and its relatives as far
as they were run, GRPO-64 in GRPO's place; the paper's ALFWorld split is unseen, ours is this project's panel.

    python -m analysis.tables.orsd_table1 --runs results/laptop_orsd --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import orsd, published, scale
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable, number, rank
from analysis.frames import Frames
from analysis.names import method_name
from analysis.results import NOTE
from analysis.tables import BuiltTable

HEADS = ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2", "ALFWorld", "WebShop score", "WebShop success")
QUOTED = "†"


def build(frames: Frames) -> list[BuiltTable]:
    """``orsd_table1``."""
    paper = published.load("orsd_table1_main_results")
    groups = [
        Group(f"{scale.PUBLISHED}: {backbone}, 300 updates", [_row(row) for row in block.to_dict("records")])
        for backbone, block in paper.groupby("backbone", sort=False)
    ]
    own = orsd.own_results(frames)
    rows = [_row(row) for row in own.to_dict("records")]
    if "orsd" not in set(own["method"]):
        rows.append([Cell("ORSD"), *[Cell(MISSING)] * len(orsd.VALUES)])
    groups.append(Group(scale.describe(frames.experiment), rows))
    printed = PrintedTable(
        name="orsd_table1",
        caption="ORSD Table 1. Success (percent) on ALFWorld by task type and overall, and on WebShop. Best bold, "
        "second underlined, within a block.",
        columns=["Method", *HEADS],
        groups=rank(groups, range(1, len(HEADS) + 1), digits=2),
        notes=[
            f"{QUOTED}: quoted by the ORSD paper from other papers.",
            NOTE,
            *orsd.absences(frames),
            *frames.left_out(),
        ],
    )
    columns = ["source", "backbone", "method", "seeds", *orsd.VALUES, "quoted"]
    policy = scale.policy_name(frames.experiment)
    both = pd.concat(
        [paper.assign(source=scale.PUBLISHED), own.assign(source=scale.OURS, backbone=policy)], ignore_index=True
    )
    return [BuiltTable(printed, both.reindex(columns=columns).astype({"seeds": "Int64"}))]


def _row(row: dict[str, object]) -> list[Cell]:
    name = method_name(str(row["method"])) + (f" {QUOTED}" if row.get("quoted") == "yes" else "")
    values = [float(row[column]) for column in orsd.VALUES]  # type: ignore[arg-type]
    ranked = row.get("ranked", True)
    return [Cell(name), *[Cell(number(v, 2), v if ranked and not pd.isna(v) else None) for v in values]]


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "ORSD Table 1: main results", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
