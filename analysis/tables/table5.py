"""Table 5: tasks of each environment, those of our runs beside the paper's.

Sizes count task instances, not rollouts. Ours are what the configuration asks for and what the shards hold: the tasks
really evaluated, and the different training tasks really played.

    python -m analysis.tables.table5 --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import published, scale
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable
from analysis.frames import Frames
from analysis.names import environment_name, ordered_environments
from analysis.panels import flat
from analysis.tables import BuiltTable

ENVIRONMENTS = ("alfworld", "dbbench", "webshop", "appworld")
"""The paper's order."""
SOURCES = {"generated": "generated, synthetic", "files": "the benchmark's files"}
"""The setting ``source`` of an environment, in words."""


def build(frames: Frames) -> list[BuiltTable]:
    """``table5``."""
    paper = published.load("rised_table5_data")
    own = own_data(frames)
    names = [*ENVIRONMENTS, *[e for e in ordered_environments(own["environment"]) if e not in ENVIRONMENTS]]
    by_environment = {str(row["environment"]): row for row in own.to_dict("records")}
    printed = PrintedTable(
        name="table5",
        caption="Table 5. Training and validation tasks by environment.",
        columns=["Environment", "Train", "Validation", "Train tasks played", "Training data", "Validation data"],
        groups=[
            Group(f"{scale.PUBLISHED} (AG: AgentBench)", [_paper_row(row) for row in paper.to_dict("records")]),
            Group(scale.describe(frames.experiment), [_own_row(name, by_environment.get(name)) for name in names]),
        ],
        notes=[
            "Played: different tasks among the training rollouts of all runs so far; empty where "
            "rollouts are not stored.",
            *_other_than_asked(own),
            *[gap for gap in frames.experiment.gaps() if "not run" in gap],
        ],
        left_columns=(4, 5),
    )
    columns = ["source", "environment", "train", "validation", "train_selection", "validation_selection"]
    columns += ["train_played", "validation_evaluated"]
    both = pd.concat([paper.assign(source=scale.PUBLISHED), own.assign(source=scale.OURS)], ignore_index=True)
    whole = dict.fromkeys(("train", "validation", "train_played", "validation_evaluated"), "Int64")
    return [BuiltTable(printed, both.reindex(columns=columns).astype(whole))]


def own_data(frames: Frames) -> pd.DataFrame:
    """One row per environment of the mix: sizes by configuration and in the shards, and where tasks come from."""
    configured: dict[str, dict[str, object]] = {}
    for run in frames.experiment.runs:
        for key, value in flat(run.config).items():
            parts = key.split(".")
            if parts[0] == "environments" and len(parts) > 2:
                configured.setdefault(parts[1], {})[".".join(parts[2:])] = value
    evaluated = frames.validation.groupby("environment")["task_id"].nunique()
    played = frames.played_tasks.groupby("environment")["task_id"].nunique()
    rows = []
    for name in ordered_environments({*configured, *evaluated.index, *played.index}):
        settings = configured.get(name, {})
        source = str(settings.get("settings.source", ""))
        rows.append(
            {
                "environment": name,
                "train": settings.get("train_tasks"),
                "validation": settings.get("validation_tasks"),
                "train_selection": SOURCES.get(source, source or "not said by the configuration"),
                "validation_selection": SOURCES.get(source, source or "not said by the configuration"),
                "train_played": played.get(name),
                "validation_evaluated": evaluated.get(name),
            }
        )
    columns = ["environment", "train", "validation", "train_selection", "validation_selection"]
    return pd.DataFrame(rows).reindex(columns=[*columns, "train_played", "validation_evaluated"])


def _paper_row(row: dict[str, object]) -> list[Cell]:
    texts = [_count(row["train"]), _count(row["validation"]), MISSING]
    selections = [str(row["train_selection"]), str(row["validation_selection"])]
    return [Cell(environment_name(str(row["environment"]))), *map(Cell, [*texts, *selections])]


def _own_row(name: str, row: dict[str, object] | None) -> list[Cell]:
    if row is None:
        return [Cell(environment_name(name)), *[Cell(MISSING)] * 3, Cell("not in the mix"), Cell("not in the mix")]
    validation = row["validation_evaluated"] if pd.isna(row["validation"]) else row["validation"]
    texts = [_count(row["train"]), _count(validation), _count(row["train_played"])]
    return [Cell(environment_name(name)), *map(Cell, texts), *map(Cell, [str(row[f"{s}_selection"]) for s in SPLITS])]


SPLITS = ("train", "validation")


def _other_than_asked(own: pd.DataFrame) -> list[str]:
    """Environments of which other tasks were evaluated than the configuration asks for."""
    odd = own.dropna(subset=["validation", "validation_evaluated"])
    odd = odd[odd["validation"].astype(int) != odd["validation_evaluated"].astype(int)]
    return [
        f"{environment_name(str(r['environment']))}: {r['validation_evaluated']:.0f} validation tasks in the shards, "
        f"{r['validation']:.0f} in the configuration"
        for r in odd.to_dict("records")
    ]


def _count(value: object) -> str:
    return MISSING if value is None or pd.isna(value) else f"{int(value):,}"  # type: ignore[call-overload]


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Table 5: data", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
