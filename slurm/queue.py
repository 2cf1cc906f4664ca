"""What Slurm's controller says about jobs, from squeue alone: many clusters have no accounting that users can ask."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

UNREACHABLE = "UNREACHABLE"
"""The controller did not answer: nothing is known, so nothing may be concluded."""
GONE = "GONE"
"""The controller does not know the job (any more)."""
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
ALIVE = WAITING | {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "PREEMPTED"}
"""States in which a job may still bring a result. PREEMPTED: with requeue it waits again."""
TIMEOUT_S = 30


def job_state(job_id: str) -> str:
    """The job's state as squeue names it, or ``GONE``, or ``UNREACHABLE``."""
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--states=all", f"--jobs={job_id.split('_')[0]}", "--format=%T"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (subprocess.TimeoutExpired, OSError):
        return UNREACHABLE
    if asked.returncode:
        return GONE if "Invalid job id" in asked.stderr else UNREACHABLE
    states = asked.stdout.split()
    return states[0] if states else GONE


def job_states(job_ids: Sequence[str]) -> dict[str, str]:
    """State of each job that the controller still knows, in one call; empty when it is silent."""
    if not job_ids:
        return {}
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--states=all", "--me", "--format=%A %T"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (subprocess.TimeoutExpired, OSError):
        return {}
    states = dict(line.split() for line in asked.stdout.splitlines() if line.strip())
    return {job: states[job] for job in job_ids if job in states}


def find_job(name: str) -> str | None:
    """The id of the caller's living job of that name; None if there is none or the controller is silent."""
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--me", f"--name={name}", "--format=%A"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    found = asked.stdout.split()
    return found[0] if found and not asked.returncode else None


def cancel(job_id: str) -> None:
    """End the job; no error if it has ended already."""
    subprocess.run(["scancel", job_id], capture_output=True, timeout=TIMEOUT_S, check=False)
