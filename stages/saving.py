"""A step's state and export: copied while the run waits, written and committed while it goes on.

What is in a state is the trainer's and the learner's; when a step becomes visible is in ``rised.records.commit``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from rised.experiment import RunConfig
from rised.learner.footprint import FLOAT32
from rised.learner.state import POLICY
from rised.records.commit import RunDirectory, Step
from rised.records.errors import RecordError
from rised.records.files import SPARE_BYTES, free_bytes
from stages.pipeline import played_file
from stages.workers import WorkerGroup

LOOP = "loop.json"
STATE_NUMBERS = 3
"""Float32 numbers that a state keeps of each parameter: itself and AdamW's two moments."""
TOKEN_BYTES = 8
"""Bytes of a token in a shard of rollouts, with its log-probability and text; compressed, and rounded up."""


def parameter_count(model: PreTrainedModel) -> int:
    """Parameters of a model, of which ZeRO may hold a part elsewhere; tied ones once."""
    return sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in model.parameters())


def check_space(config: RunConfig, out: Path, parameters: int, next_step: int) -> None:
    """Hold the free space against what the steps from ``next_step`` on will write, before any of them is made.

    RecordError if not even the next state and export fit. If the whole run may not fit, one line is printed.
    """
    state, export = (FLOAT32 * numbers * parameters for numbers in (STATE_NUMBERS, 1))
    steps = range(max(1, next_step), config.updates + 1)
    exports = sum(n == config.updates or bool(config.export_every and n % config.export_every == 0) for n in steps)
    kept = exports if config.keep_exports is None else min(exports, config.keep_exports + 1)
    # a state is written before the one that it replaces is removed
    states = min(config.keep_states + 1, len(steps) + 1) if next_step == 0 else 1
    tokens = config.method.candidate_groups * config.rollouts_per_group * config.rollout.max_episode_tokens
    free = free_bytes(next(path for path in (out, *out.absolute().parents) if path.exists()))
    needed = (state + export if exports else state) + SPARE_BYTES
    if free < needed:
        raise RecordError(
            f"no space left for the next step in {out}: a state and an export of {parameters:,} parameters take "
            f"{needed:,} bytes, {free:,} bytes are free. Free some space, or name another folder with --out."
        )
    whole = states * state + kept * export + len(steps) * tokens * TOKEN_BYTES
    if free < whole:
        print(
            f"warning: {out} may need {whole:,} bytes for {len(steps):,} steps, {free:,} bytes are free: "
            f"{states} states of {state:,} bytes, {kept} exports of {export:,} bytes (export_every, keep_exports), "
            f"and at most {tokens * TOKEN_BYTES:,} bytes of rollouts a step. A run that stops at a full disk goes on "
            "after its last committed step.",
            file=sys.stderr,
            flush=True,
        )


def copy_state(
    run: RunDirectory, workers: WorkerGroup, step: Step, state: Mapping[str, Any], *, lag: int, export: bool
) -> Callable[[], None]:
    """Copy the learners' state to host memory and write what is small; returns what writes the rest into ``step``.

    With a ``lag`` the next steps are played by the weights of as many steps before this one, whose files stay for that.
    """
    taken = workers.snapshot()
    step.write_state(LOOP, json.dumps(state, sort_keys=True).encode())
    folder, exported = step.folder(), step.folder(checkpoint=True) if export else None
    if exported is not None:
        workers.describe(exported)

    def write() -> None:
        taken.write(folder)
        for updates in range(1, min(lag, step.number) + 1):
            earlier = POLICY if updates == 1 else played_file(updates - 1)
            step.link_state(played_file(updates), run.state_entry(step.number - 1, earlier))
        step.add_files()
        if exported is not None:
            taken.export(exported)
            step.add_files(checkpoint=True)

    return write
