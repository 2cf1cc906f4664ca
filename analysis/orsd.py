"""ORSD's quantities from our shards: success on ALFWorld by task type, WebShop's score and success, all in percent.

A task's type stands in its payload (``tasks.parquet`` beside the runs); without that file the types are unknown and
stay empty. Published numbers are in ``data/paper``.
"""

from __future__ import annotations

import pandas as pd

from analysis.frames import Frames, outcomes_of
from analysis.results import final_results, is_ranked
from analysis.statistics import mean_std
from rised.records.schemas import from_table
from rised.records.shards import read_shard
from rised.statistics.pass_rates import mean_over_tasks

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
    """One row per method: means over its final runs of ``VALUES`` in percent, and seeds; NaN where unknown.

    ``ranked``: whether all planned seeds and nearly all episodes are behind the row (``analysis.results``).
    """
    results = final_results(frames).set_index(["method", "environment"])
    rows = []
    for method in own_methods(frames):
        runs, step = frames.final_runs(method), frames.final_step
        found = results.loc[[method]]
        row: dict[str, object] = {"method": method, "seeds": len(runs)}
        row["ranked"] = all(is_ranked(each) for each in found.to_dict("records"))
        if runs and step is not None:
            row |= _by_type(frames, method, [run.seed for run in runs], step)
            for column, environment in (("alfworld_overall", "alfworld"), ("webshop_success", "webshop")):
                if (method, environment) in results.index:
                    row[column] = 100 * results.loc[(method, environment), "mean"]
            row["webshop_score"] = _score(frames, method, [run.seed for run in runs], step)
        rows.append(row)
    frame = pd.DataFrame(rows).reindex(columns=["method", "seeds", "ranked", *VALUES])
    return frame.astype(dict.fromkeys(VALUES, "float64"))


def _by_type(frames: Frames, method: str, seeds: list[int], step: int) -> dict[str, float]:
    """Mean over runs of each one's pass rate on the tasks of a type."""
    types = task_types(frames)
    rows = frames.validation
    rows = rows[(rows["method"] == method) & (rows["step"] == step) & (rows["environment"] == "alfworld")]
    rows = rows[rows["seed"].isin(seeds)]
    if types.empty or rows.empty:
        return {}
    found: dict[str, list[float | None]] = {}
    for (kind, _), block in rows.assign(kind=rows["task_id"].map(types)).groupby(["kind", "seed"]):
        found.setdefault(str(kind), []).append(mean_over_tasks(outcomes_of(block)))
    means = {kind: mean_std([value for value in values if value is not None]) for kind, values in found.items()}
    return {kind: 100 * mean.mean for kind, mean in means.items() if mean is not None}


def _score(frames: Frames, method: str, seeds: list[int], step: int) -> float | None:
    metrics = frames.metrics
    own = metrics[(metrics["method"] == method) & metrics["seed"].isin(seeds) & (metrics["step"] == step)]
    values = own.loc[own["name"] == "validation/reward/webshop", "value"]
    return 100 * float(values.mean(skipna=False)) if len(values) == len(seeds) else None
