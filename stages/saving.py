"""A step's state and export: copied while the run waits, written and committed while it goes on.

What is in a state is the trainer's and the learner's; when a step becomes visible is in ``rised.records.commit``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rised.learner.state import POLICY
from rised.records.commit import RunDirectory, Step
from stages.pipeline import played_file
from stages.workers import WorkerGroup

LOOP = "loop.json"


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
