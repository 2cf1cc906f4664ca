"""What a pass rate cost: updates, generated tokens, and device-seconds with the judge's among them.

Device-seconds of a run are its step seconds times the devices that it holds: the training's processes (one each: a
GPU on a cluster, a core on a laptop), and the devices of the judge's servers for every update in which the judge was
asked [ours]. A server is counted as held for the whole step, as a dedicated server is; one that several runs share is
counted for each of them, so the sum is an upper bound. ``judge_busy_s`` is what it really worked. The rule judge runs
inside the training's process. Evaluations are not counted: all methods have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from analysis.frames import Frames
from analysis.names import BASELINE
from analysis.panels import flat
from analysis.runs import Run

COUNTED = {
    "rollout/generated_tokens": "generated_tokens",
    "rollout/tokens": "tokens",
    "judge/prompt_tokens": "judge_prompt_tokens",
    "judge/completion_tokens": "judge_tokens",
    "judge/calls": "judge_calls",
}
PER_UPDATE = ["generated_tokens", "tokens", "judge_tokens", "seconds", "training_device_s", "judge_device_s"]
COSTS = [*PER_UPDATE, "device_s", "judge_busy_s"]
AXES = {"step": "Updates", "generated_tokens": "Generated tokens", "device_s": "Device-seconds, judge included"}
"""What pass rates are plotted against."""
PROCESSES = "process/count"


@dataclass(frozen=True, slots=True)
class Devices:
    """``training`` is None where the shards do not say and one process is assumed; ``judge`` None: servers unknown."""

    training: int | None
    judge: int | None


def devices(frames: Frames, run: Run) -> Devices:
    """How many devices a run held."""
    times = frames.timings
    own = times[(times["method"] == run.method) & (times["seed"] == run.seed) & (times["name"] == PROCESSES)]
    return Devices(None if own.empty else int(own["value"].max()), _judge_devices(run))


def _judge_devices(run: Run) -> int | None:
    settings = flat(run.config)
    if settings.get("rubrics.judge.type") != "llm":
        return 0
    replicas = settings.get("judge_server.replicas")
    if replicas is None:
        return None
    return int(replicas) * int(settings.get("judge_server.tensor_parallel") or 1)


def device_notes(frames: Frames) -> list[str]:
    """How device-seconds were counted for these runs, and what the shards do not say."""
    held = {run.label: devices(frames, run) for run in frames.experiment.runs}
    notes = [
        "Device-seconds: step seconds × (processes of the training + devices of the judge's servers, where the judge "
        "was asked). Evaluations are not counted."
    ]
    if any(found.training is None for found in held.values()):
        notes.append("These shards do not record the number of processes; one is assumed.")
    if all(found.judge == 0 for found in held.values()):
        notes.append("The rule judge runs inside the training's process: its seconds are in the step.")
    unknown = [label for label, found in held.items() if found.judge is None]
    if unknown:
        notes.append(f"Judge at an address of its own, devices unknown, no device-seconds: {', '.join(unknown)}.")
    return notes


def run_costs(frames: Frames, run: Run) -> pd.DataFrame:
    """One row per update: ``step`` and the running totals of ``COSTS``; NaN from the first step that lacks a number.

    A total over steps with a hole would look like a cheaper run, so it is undefined instead.
    """
    steps = range(1, run.last_step + 1)
    mine = [(f["method"] == run.method) & (f["seed"] == run.seed) for f in (frames.metrics, frames.timings)]
    metrics = frames.metrics[mine[0] & frames.metrics["name"].isin(COUNTED)]
    wide = metrics.pivot(index="step", columns="name", values="value").rename(columns=COUNTED)
    frame = wide.reindex(index=steps, columns=list(COUNTED.values()))
    times = frames.timings[mine[1] & (frames.timings["name"] == "time/step")].set_index("step")["value"]
    frame["seconds"] = times.reindex(steps)
    held = devices(frames, run)
    asked = frame["judge_calls"].fillna(0) > 0
    frame["judge_tokens"] = (frame["judge_tokens"] + frame["judge_prompt_tokens"]).where(asked, 0.0)
    frame["training_device_s"] = frame["seconds"] * (held.training or 1)
    frame["judge_device_s"] = 0.0
    if asked.any():
        frame["judge_device_s"] = frame["seconds"].where(asked, 0.0) * (np.nan if held.judge is None else held.judge)
    frame["device_s"] = frame["training_device_s"] + frame["judge_device_s"]
    frame["judge_busy_s"] = _busy(run, steps).to_numpy() * (np.nan if held.judge is None else held.judge)
    total = pd.DataFrame({name: np.cumsum(frame[name].to_numpy(dtype=np.float64)) for name in COSTS}, index=steps)
    return total.rename_axis("step").reset_index()


def _busy(run: Run, steps: Sequence[int]) -> pd.Series:
    table = run.reader.scan("timings", ["step", "value"], pc.field("name") == "judge/tag").to_pandas()
    return table.groupby("step")["value"].sum().reindex(steps).fillna(0.0)


def cost_frame(frames: Frames) -> pd.DataFrame:
    """One row per run and evaluation: method, seed, step, pass_rate (overall), and the totals of ``COSTS`` until then.

    Step 0, the warm start, cost nothing.
    """
    overall = frames.pass_rates[frames.pass_rates["environment"] == "overall"]
    parts = []
    for run in frames.experiment.runs:
        start = pd.DataFrame([{"step": 0, **dict.fromkeys(COSTS, 0.0)}])
        costs = run_costs(frames, run) if run.last_step else start.iloc[:0]
        own = overall[(overall["method"] == run.method) & (overall["seed"] == run.seed)]
        totals = pd.concat([part for part in (start, costs) if len(part)], ignore_index=True)
        parts.append(own[["method", "seed", "step", "pass_rate"]].merge(totals, on="step", how="left"))
    columns = ["method", "seed", "step", "pass_rate", *COSTS]
    kept = [part for part in parts if len(part)]
    return pd.concat(kept, ignore_index=True)[columns] if kept else pd.DataFrame(columns=columns)


def thresholds(frames: Frames) -> dict[str, float]:
    """Pass rates to reach [ours]: the baseline's final mean, and half of the way there from the warm start.

    Empty where the baseline has no finished run or gained nothing: then there is nothing to reach.
    """
    step = frames.final_step
    finals = [frames.rate(run, step, "overall") for run in frames.final_runs(BASELINE)] if step is not None else []
    starts = [frames.rate(run, 0, "overall") for run in frames.experiment.of(BASELINE)]
    if not finals or not starts or np.isnan([*finals, *starts]).any():
        return {}
    start, final = float(np.mean(starts)), float(np.mean(finals))
    return {"half": start + (final - start) / 2, "full": final} if final > start else {}


def first_reached(costs: pd.DataFrame, rate: float) -> pd.DataFrame:
    """For each run its first evaluation with at least this pass rate; a run that never had it has NaN costs.

    No interpolation: between two evaluations nobody knows. Columns as ``cost_frame``, and ``reached``.
    """
    rows: list[dict[str, Any]] = []
    for (method, seed), block in costs.groupby(["method", "seed"], sort=False):
        above = block[block["pass_rate"] >= rate].sort_values("step")
        found = above.iloc[0].to_dict() if len(above) else {}
        rows.append({"method": method, "seed": seed, **found, "reached": bool(len(above))})
    return pd.DataFrame(rows).reindex(columns=[*costs.columns, "reached"])
