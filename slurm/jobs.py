"""Jobs of one executor: submitted, found again, asked for their state, ended. Knows nothing of stages or results."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import submitit
from submitit.core.utils import FailedJobError

from slurm import queue
from slurm.errors import StageFailed
from slurm.site import Site, executor_parameters

Executor = Literal["slurm", "local", "debug"]
LAST_LINES = 25
INTERRUPT_S = 5.0
NO_LOG = "(no log: the folder must be visible on the nodes, and stay while the job waits)"
OWN_TRACEBACK = "submitit ERROR"
"""What follows in a log is the launcher's traceback, not the command's."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job, or a job array. ``parts``: part -> its submitit job; a plain job is part 0 of itself."""

    job_id: str
    parts: Mapping[int, Any]

    @property
    def only(self) -> Any:
        """The submitit job of a plain job."""
        return next(iter(self.parts.values()))

    def has_result(self, part: int) -> bool:
        """Whether every task of the part has written how it ended."""
        return all(task.paths.result_pickle.exists() for task in self.tasks(part))

    def has_results(self) -> bool:
        return all(map(self.has_result, self.parts))

    def tasks(self, part: int) -> list[Any]:
        """The part's processes."""
        job = self.parts[part]
        return list(job._sub_jobs) or [job]

    def failed_task(self, part: int) -> Any:
        """Of the part's tasks that ended with an error the one that did so first; None if none did."""
        ended = [task for task in self.tasks(part) if task.paths.result_pickle.exists()]
        failed = [task for task in ended if task.exception() is not None]
        return min(failed, key=lambda task: task.paths.result_pickle.stat().st_mtime_ns, default=None)


class JobSystem:
    """``folder``: below it each job has a folder of its name, with its log."""

    def __init__(self, site: Site, executor: Executor, folder: Path) -> None:
        self.site, self.executor, self.folder = site, executor, folder

    def submit(self, stage: str, name: str, parts: Mapping[int, Callable[[], Any]]) -> Submitted:
        """Submit one job, or an array if there are several parts. StageFailed with Slurm's reason if it is refused."""
        executor = self._submitit(stage, name)
        try:
            with _outside_of_jobs(), executor.batch():
                jobs = [executor.submit(part) for part in parts.values()]
        except FailedJobError as error:
            raise StageFailed(f"{name}: the job was not accepted: {error}".strip()) from None
        return Submitted(jobs[0].job_id.split("_")[0], dict(zip(parts, jobs, strict=True)))

    def known(self, job_id: str, parts: Sequence[int], tasks: int) -> Submitted:
        """A job that was submitted earlier; ``parts`` as then, in order, ``tasks`` of each."""
        one = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}[self.executor]
        ids = [job_id] if len(parts) == 1 else [f"{job_id}_{index}" for index in range(len(parts))]
        folder = str(self.folder / "%j")
        made = [one(folder=folder, job_id=each, tasks=list(range(tasks))) for each in ids]
        return Submitted(job_id, dict(zip(parts, made, strict=True)))

    def find(self, name: str) -> dict[str, str] | None:
        """Id -> state of living jobs of that name; None if the scheduler did not answer."""
        return queue.find_jobs(name) if self.executor == "slurm" else {}

    def states(self, job: Submitted) -> dict[int, str]:
        """Part -> state, in the words of ``slurm.queue``."""
        if self.executor == "slurm":
            found = queue.states_of(job.job_id)
            return {
                part: found if isinstance(found, str) else found.get(each.job_id, queue.GONE)
                for part, each in job.parts.items()
            }
        return {part: "RUNNING" if is_alive(int(each.job_id)) else queue.GONE for part, each in job.parts.items()}

    def cancel(self, job: Submitted, part: int | None = None) -> str:
        """End the job or one part of it; "" or what hindered it."""
        if self.executor == "slurm":
            return queue.cancel(job.job_id if part is None else job.parts[part].job_id)
        for each in job.parts.values():
            _end_local_job(int(each.job_id))
        return ""

    def script(self, stage: str, name: str) -> str:
        """The batch script of a plain job."""
        inner: Any = self._submitit(stage, name)._executor
        return str(inner._make_submission_file_text(inner._submitit_command_str, "dry-run"))

    def task_count(self, stage: str) -> int:
        """Processes of a job of the stage."""
        wanted = self.site.resources(stage)
        return wanted.nodes * wanted.tasks_per_node

    def _submitit(self, stage: str, name: str) -> Any:
        options: dict[str, Any] = {}
        if self.executor == "slurm":
            options = {"slurm_max_num_timeout": self.site.most_timeouts}
            if self.site.python:
                options["slurm_python"] = self.site.python
        executor = submitit.AutoExecutor(folder=str(self.folder / "%j"), cluster=self.executor, **options)
        parameters = executor_parameters(self.site, stage, name)
        if self.executor == "local" and parameters["nodes"] > 1:
            raise StageFailed(f"{name}: stage {stage} wants {parameters['nodes']} nodes; the local executor has one")
        executor.update_parameters(**parameters)
        return executor


@contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Hide the variables of a surrounding job: sbatch would inherit its limits from them."""
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith(("SLURM_", "SUBMITIT_")) and name != "SLURM_CONF"
    }
    try:
        yield
    finally:
        os.environ.update(hidden)


def _end_local_job(controller: int) -> None:
    """End submitit's controller and its tasks: by SIGINT, or where a shell had them ignore it by SIGKILL.

    What a task runs dies with it.
    """
    tasks = _children(controller)
    for number, patience_s in ((signal.SIGINT, INTERRUPT_S), (signal.SIGKILL, 0.0)):
        for pid in (controller, *tasks):
            if is_alive(pid):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        deadline = time.monotonic() + patience_s
        while any(map(is_alive, (controller, *tasks))) and time.monotonic() < deadline:
            time.sleep(0.1)


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def last_lines_of(log: Path) -> list[str]:
    """The end of a job's log, without the launcher's own traceback."""
    text = log.read_text(errors="replace") if log.is_file() else NO_LOG
    return text.partition(OWN_TRACEBACK)[0].splitlines()[-LAST_LINES:]


def last_words(lines: Sequence[str]) -> str:
    """The last line that says something; "" if none does."""
    return next((line for line in reversed(lines) if line.strip()), "")


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
