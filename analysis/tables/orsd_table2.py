"""ORSD Table 2: component ablations on WebShop, score and success in percent.

python -m analysis.tables.orsd_table2 --runs results/laptop_orsd --out build/tables
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

BACKBONES = {"qwen3_1p7b": "Qwen3-1.7B", "qwen3_4b": "Qwen3-4B"}
OURS = {
    "grpo": "grpo_64",
    "offline_rubric": "orsd_offline_rubric",
    "orsd_without_alignment": "orsd_without_alignment",
    "random_rubric": "orsd_random_rubric",
    "orsd_m4": "orsd",
}
"""The paper's row -> the method of ours that would stand there."""


def build(frames: Frames) -> list[BuiltTable]:
    """``orsd_table2``."""
    paper = published.load("orsd_table2_ablation_webshop")
    own = orsd.own_results(frames).set_index("method")
    groups, records = [], []
    for key, backbone in BACKBONES.items():
        rows = []
        for row in paper.to_dict("records"):
            values = (float(row[f"{key}_score"]), float(row[f"{key}_success"]))
            rows.append(_row(method_name(str(row["method"])), values))
            records.append((scale.PUBLISHED, backbone, row["method"], *values, None))
        groups.append(Group(f"{scale.PUBLISHED}: {backbone}", rows))
    rows = []
    for theirs, mine in OURS.items():
        if mine not in own.index:
            rows.append([Cell(method_name(theirs)), Cell(MISSING), Cell("not run")])
            continue
        values = (float(own.loc[mine, "webshop_score"]), float(own.loc[mine, "webshop_success"]))
        rows.append(_row(method_name(mine), values, bool(own.loc[mine, "ranked"])))
        records.append((scale.OURS, scale.policy_name(frames.experiment), mine, *values, own.loc[mine, "seeds"]))
    groups.append(Group(scale.describe(frames.experiment), rows))
    printed = PrintedTable(
        name="orsd_table2",
        caption="ORSD Table 2. Component ablations on WebShop, in percent. Best bold, second underlined, "
        "within a block.",
        columns=["Method", "Score", "Success"],
        groups=rank(groups, (1, 2), digits=2),
        notes=[NOTE, *[n for n in orsd.absences(frames) if "Task types" not in n], *frames.left_out()],
    )
    columns = ["source", "policy", "method", "webshop_score", "webshop_success", "seeds"]
    return [BuiltTable(printed, pd.DataFrame(records, columns=columns).astype({"seeds": "Int64"}))]


def _row(name: str, values: Sequence[float], ranked: bool = True) -> list[Cell]:
    return [Cell(name), *[Cell(number(v, 2), v if ranked and not pd.isna(v) else None) for v in values]]


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "ORSD Table 2: ablations", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
