"""ORSD's quantities from our shards: success on ALFWorld by task type, WebShop's score and success, all in percent.

A task's type stands in its payload (``tasks.parquet`` beside the runs); without that file the types are unknown and
stay empty. Published numbers are in ``data/paper``.
"""

from __future__ import annotations

import pandas as pd

from analysis.frames import Frames
from analysis.statistics import mean_std
from rised.records.schemas import from_table
from rised.records.shards import read_shard

TYPES = {
    "pick": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "pick2": "pick_two_obj_and_place",
}
"""The paper's column -> ALFWorld's name of the type."""
VALUES = [*TYPES, "alfworld_overall", "webshop_score", "webshop_success"]
BASELINES = ("grpo_64", "gigpo", "opsd", "grpo_opsd", "sdar")
"""Methods of ours that stand beside ORSD's own; ``grpo_64`` is GRPO at this project's numbers of groups."""
NOT_HERE = "ORSD: not run in this experiment."
TASKS_FILE = "tasks.parquet"


def own_methods(frames: Frames) -> list[str]:
    """The experiment's methods that belong in ORSD's tables."""
    return [m for m in frames.experiment.methods if m in BASELINES or m.startswith("orsd")]


def absences(frames: Frames) -> list[str]:
    """What the tables lack, in sentences."""
    notes = [] if any(m.startswith("orsd") for m in frames.experiment.methods) else [NOT_HERE]
    if task_types(frames).empty and "alfworld" in frames.environments:
        notes.append(f"Task types are unknown: there is no {TASKS_FILE} beside these runs.")
    return notes


def task_types(frames: Frames) -> pd.Series:
    """ALFWorld validation task -> the paper's column; empty without the task file."""
    path = frames.experiment.path / TASKS_FILE
    if not path.is_file():
        return pd.Series(dtype="object")
    columns = {name: column for column, name in TYPES.items()}
    found = {
        task["task_id"]: columns.get(task["payload"].get("task_type"))
        for task in from_table(read_shard(path, "tasks"), str(path))
        if (task["environment"], task["split"]) == ("alfworld", "validation")
    }
    return pd.Series(found, dtype="object").dropna()


def own_results(frames: Frames) -> pd.DataFrame:
    """One row per method: means over its final runs of ``VALUES`` in percent, and seeds; NaN where unknown."""
    rows = []
    for method in own_methods(frames):
        runs, step = frames.final_runs(method), frames.final_step
        row: dict[str, object] = {"method": method, "seeds": len(runs)}
        if runs and step is not None:
            row |= _by_type(frames, method, [run.seed for run in runs], step)
            for column, environment in (("alfworld_overall", "alfworld"), ("webshop_success", "webshop")):
                found = mean_std([frames.rate(run, step, environment) for run in runs])
                row[column] = None if found is None else 100 * found.mean
            row["webshop_score"] = _score(frames, method, [run.seed for run in runs], step)
        rows.append(row)
    frame = pd.DataFrame(rows).reindex(columns=["method", "seeds", *VALUES])
    return frame.astype(dict.fromkeys(VALUES, "float64"))


def _by_type(frames: Frames, method: str, seeds: list[int], step: int) -> dict[str, float]:
    types = task_types(frames)
    rows = frames.validation
    rows = rows[(rows["method"] == method) & (rows["step"] == step) & (rows["environment"] == "alfworld")]
    rows = rows[rows["seed"].isin(seeds) & rows["reward_valid"]]
    if types.empty or rows.empty:
        return {}
    rates = rows.assign(kind=rows["task_id"].map(types), passed=rows["success"].astype("float64"))
    per_task = rates.groupby(["kind", "seed", "task_id"])["passed"].mean()
    return {str(kind): 100 * float(value) for kind, value in per_task.groupby("kind").mean().items()}


def _score(frames: Frames, method: str, seeds: list[int], step: int) -> float | None:
    metrics = frames.metrics
    own = metrics[(metrics["method"] == method) & metrics["seed"].isin(seeds) & (metrics["step"] == step)]
    values = own.loc[own["name"] == "validation/reward/webshop", "value"]
    return 100 * float(values.mean()) if len(values) == len(seeds) else None
