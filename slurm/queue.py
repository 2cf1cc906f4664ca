"""What Slurm's controller says about jobs, from squeue alone: many clusters have no accounting that users can ask."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from slurm.errors import StageFailed

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
    except FileNotFoundError:
        raise StageFailed("squeue is not installed here: use another executor (--profile slurm/local)") from None
    except (subprocess.TimeoutExpired, OSError):
        return None


def states_of(job_id: str) -> dict[str, str] | str:
    """State of a job, or of every element of a job array, by its id (``12`` or ``12_0``).

    ``UNREACHABLE`` instead if nothing is known; a job that is missing in the answer is ``GONE``.
    """
    asked = _ask(f"--jobs={job_id}", "--array", "--format=%i %T")
    if asked is None:
        return UNREACHABLE
    if asked.returncode:
        return {} if "Invalid job id" in asked.stderr else UNREACHABLE
    return dict(line.split() for line in asked.stdout.splitlines() if line.strip())


def job_state(job_id: str) -> str:
    """The job's state as squeue names it (of an array: of one element that is alive), or ``GONE``, ``UNREACHABLE``."""
    found = states_of(job_id)
    if isinstance(found, str):
        return found
    return next((state for state in found.values() if state in ALIVE), next(iter(found.values()), GONE))


def job_states(job_ids: Sequence[str]) -> dict[str, str]:
    """The state of each job, in one call."""
    if not job_ids:
        return {}
    asked = _ask("--me", "--array", "--format=%F %T")
    if asked is None or asked.returncode:
        return dict.fromkeys(job_ids, UNREACHABLE)
    return {job: _by_job(asked.stdout).get(job, GONE) for job in job_ids}


def find_jobs(name: str) -> dict[str, str] | None:
    """Id -> state of the caller's jobs of that name that are alive; None if the controller did not answer."""
    asked = _ask("--me", f"--name={name}", "--array", "--format=%F %T")
    if asked is None or asked.returncode:
        return None
    return {job: state for job, state in _by_job(asked.stdout).items() if state in ALIVE}


def _by_job(answer: str) -> dict[str, str]:
    """Job, or job array, -> its state; of an array that of the element which is most alive."""
    found: dict[str, str] = {}
    for line in filter(str.strip, answer.splitlines()):
        job, state = line.split()
        if job not in found or _liveliness(state) > _liveliness(found[job]):
            found[job] = state
    return found


def _liveliness(state: str) -> int:
    return 0 if state not in ALIVE else 1 if state == ENDING else 2 if state in WAITING else 3


def most_array_parts() -> int | None:
    """How many elements the site allows in a job array (MaxArraySize, one more than the greatest index).

    None if the controller does not say.
    """
    try:
        asked = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, OSError):
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", asked.stdout, re.MULTILINE)
    return max(1, int(found[1])) if found else None


def cancel(job_id: str) -> str:
    """End the job; "" or why it could not be asked to end. No error for a job that has ended already."""
    try:
        asked = subprocess.run(["scancel", job_id], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    return asked.stderr.strip() if asked.returncode and job_state(job_id) in ALIVE | {UNREACHABLE} else ""
