"""What Slurm's controller says about jobs, from squeue alone: many clusters have no accounting that users can ask."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

UNREACHABLE = "UNREACHABLE"
"""The controller did not answer: nothing is known, so nothing may be concluded."""
GONE = "GONE"
"""The controller does not know the job (any more)."""
ENDING = "COMPLETING"
"""The job is being ended; no launcher may attach to it."""
WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
ALIVE = WAITING | {"RUNNING", ENDING, "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "PREEMPTED"}
"""States in which a job may still bring a result. PREEMPTED: with requeue it waits again."""
TIMEOUT_S = 30


def _ask(*options: str) -> subprocess.CompletedProcess[str] | None:
    """squeue's answer, jobs of every state included; None if it could not be asked."""
    command = ["squeue", "--noheader", "--states=all", *options]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, OSError):
        return None


def job_state(job_id: str) -> str:
    """The job's state as squeue names it, or ``GONE``, or ``UNREACHABLE``."""
    asked = _ask(f"--jobs={job_id.split('_')[0]}", "--format=%T")
    if asked is None:
        return UNREACHABLE
    if asked.returncode:
        return GONE if "Invalid job id" in asked.stderr else UNREACHABLE
    states = asked.stdout.split()
    return states[0] if states else GONE


def job_states(job_ids: Sequence[str]) -> dict[str, str]:
    """The state of each job, in one call."""
    if not job_ids:
        return {}
    asked = _ask("--me", "--format=%A %T")
    if asked is None or asked.returncode:
        return dict.fromkeys(job_ids, UNREACHABLE)
    states = dict(line.split() for line in asked.stdout.splitlines() if line.strip())
    return {job: states.get(job, GONE) for job in job_ids}


def find_jobs(name: str) -> dict[str, str] | None:
    """Id -> state of the caller's jobs of that name that are alive; None if the controller did not answer."""
    asked = _ask("--me", f"--name={name}", "--format=%A %T")
    if asked is None or asked.returncode:
        return None
    found = dict(line.split() for line in asked.stdout.splitlines() if line.strip())
    return {job: state for job, state in found.items() if state in ALIVE}


def cancel(job_id: str) -> str:
    """End the job; "" or why it could not be asked to end. No error for a job that has ended already."""
    try:
        asked = subprocess.run(["scancel", job_id], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    return asked.stderr.strip() if asked.returncode and job_state(job_id) in ALIVE | {UNREACHABLE} else ""
