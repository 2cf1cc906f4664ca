"""Jobs of one executor: submitted, found again, asked for their state, ended. Knows nothing of stages or results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import submitit
from submitit.core.utils import FailedJobError

from slurm import queue
from slurm.errors import SchedulerAway, StageFailed
from slurm.processes import end_with_children, is_alive, kill, process_start, processes
from slurm.site import Site, executor_parameters

Executor = Literal["slurm", "local", "debug"]
LAST_LINES = 25
SHOWN_FAILURES = 3
"""Parts of an array whose logs are quoted; all that failed are named."""
AWAY = ("unable to contact", "timed out", "connection refused")
"""What sbatch says when the controller did not answer."""
NO_LOG = "(no log: the folder must be visible on the nodes, and stay while the job waits)"
OWN_TRACEBACK = "submitit ERROR"
"""What follows in a log is the launcher's traceback, not the command's."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job, or a job array. ``parts``: part -> its submitit job; a plain job is part 0 of itself.

    ``born``: when the process of a local job began, since its number may come again; "" for others.
    """

    job_id: str
    parts: Mapping[int, Any]
    born: str = ""

    @property
    def only(self) -> Any:
        """The submitit job of a plain job."""
        return next(iter(self.parts.values()))

    def has_result(self, part: int) -> bool:
        """Whether every task of the part has written how it ended."""
        return all(map(_has_ended, self.tasks(part)))

    def has_results(self) -> bool:
        return all(map(self.has_result, self.parts))

    def tasks(self, part: int) -> list[Any]:
        """The part's processes."""
        job = self.parts[part]
        return list(job._sub_jobs) or [job]

    def failed_task(self, part: int) -> Any:
        """Of the part's tasks that ended with an error the one that did so first; None if none did."""
        failed = [task for task in self.tasks(part) if _has_ended(task) and task.exception() is not None]
        return min(failed, key=lambda task: task.paths.result_pickle.stat().st_mtime_ns, default=None)


class JobSystem:
    """``folder``: below it each job has a folder of its name, with its log."""

    def __init__(self, site: Site, executor: Executor, folder: Path) -> None:
        self.site, self.executor, self.folder = site, executor, folder

    def submit(self, stage: str, name: str, parts: Mapping[int, Callable[[], Any]]) -> Submitted:
        """Submit one job, or an array if there are several parts.

        StageFailed with Slurm's reason if it is refused, SchedulerAway if nobody answered.
        """
        executor = self._submitit(stage, name, len(parts))
        try:
            with _outside_of_jobs(), executor.batch():
                jobs = [executor.submit(part) for part in parts.values()]
        except FailedJobError as error:
            away = any(words in str(error).lower() for words in AWAY)
            kind = SchedulerAway if away else StageFailed
            raise kind(f"{name}: the job was not accepted: {error}".strip()) from None
        job_id = jobs[0].job_id.split("_")[0]
        born = process_start(int(job_id)) if self.executor == "local" else ""
        return Submitted(job_id, dict(zip(parts, jobs, strict=True)), born)

    def known(self, record: Mapping[str, Any]) -> Submitted:
        """A job that was submitted earlier, by its record (``JobFiles.write_job``)."""
        one = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}[self.executor]
        job_id, parts = record["job"], record["parts"]
        ids = [job_id] if len(parts) == 1 else [f"{job_id}_{index}" for index in range(len(parts))]
        tasks = list(range(record["tasks"]))
        made = [one(folder=self._log_folder(len(parts)), job_id=each, tasks=tasks) for each in ids]
        return Submitted(job_id, dict(zip(parts, made, strict=True)), record.get("born", ""))

    def _log_folder(self, parts: int) -> str:
        """An array's parts may start at once, so their logs' folder must be there before their numbers are known."""
        return str(self.folder / ("%j" if parts == 1 else "parts"))

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
        living = is_alive(int(job.job_id), job.born) or self._local_tasks(job.job_id)
        state = "RUNNING" if living else queue.GONE
        return dict.fromkeys(job.parts, state)

    def cancel(self, job: Submitted, part: int | None = None) -> str:
        """End the job or one part of it; "" or what hindered it."""
        if self.executor == "slurm":
            return queue.cancel(job.job_id if part is None else job.parts[part].job_id)
        if is_alive(int(job.job_id), job.born):
            end_with_children(int(job.job_id))
        kill(self._local_tasks(job.job_id))
        return ""

    def _local_tasks(self, job_id: str) -> list[int]:
        """Processes of a local job's tasks: they go on when the process that began them, the job's own, was killed."""
        mark, program = f"SUBMITIT_LOCAL_JOB_ID={job_id}", "submitit.core._submit"
        words = (program, str(self.folder))
        return [p.pid for p in processes() if mark in p.environment and all(word in p.command for word in words)]

    def script(self, stage: str, name: str) -> str:
        """The batch script of a plain job."""
        inner: Any = self._submitit(stage, name, 1)._executor
        return str(inner._make_submission_file_text(inner._submitit_command_str, "dry-run"))

    def task_count(self, stage: str) -> int:
        """Processes of a job of the stage."""
        wanted = self.site.resources(stage)
        return wanted.nodes * wanted.tasks_per_node

    def _submitit(self, stage: str, name: str, parts: int) -> Any:
        options: dict[str, Any] = {}
        if self.executor == "slurm":
            options = {"slurm_max_num_timeout": self.site.most_timeouts}
            if self.site.python:
                options["slurm_python"] = self.site.python
        folder = self._log_folder(parts)
        if parts > 1:
            Path(folder).mkdir(parents=True, exist_ok=True)
        executor = submitit.AutoExecutor(folder=folder, cluster=self.executor, **options)
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


def last_lines_of(log: Path) -> list[str]:
    """The end of a job's log, without the launcher's own traceback."""
    text = log.read_text(errors="replace") if log.is_file() else NO_LOG
    return text.partition(OWN_TRACEBACK)[0].splitlines()[-LAST_LINES:]


def how_it_ended(job: Submitted, name: str, failed: Mapping[int, Any], lost: Mapping[int, str]) -> tuple[str, str]:
    """Of each part without a result how it ended, its log, and what that says last; and the first one's last line.

    ``failed``: part -> the task that ended with an error, or None; ``lost``: part -> state, of parts without a result.
    """
    blocks: list[str] = []
    last_lines: list[str] = []
    bad = [part for part in job.parts if failed[part] is not None or part in lost]
    for part in bad:
        task = failed[part] if failed[part] is not None else job.tasks(part)[0]
        how = "failed" if failed[part] is not None else f"ended ({lost[part]}) without a result"
        which = f" task {task.task_id}" if len(job.tasks(part)) > 1 and failed[part] is not None else ""
        lines = last_lines_of(Path(task.paths.stdout))
        head = f"{name}: job {task.job_id}{which} {how}\nlog: {task.paths.stdout}"
        blocks.append("\n".join([head, *lines]) if len(blocks) < SHOWN_FAILURES else head)
        last_lines.append(last_words(lines))
    if len(job.parts) > 1:
        blocks.append(f"{len(bad)} of {len(job.parts)} parts failed; run again, and only they are run again")
    return "\n".join(blocks), last_lines[0]


def last_words(lines: Sequence[str]) -> str:
    """The last line that says something; "" if none does."""
    return next((line for line in reversed(lines) if line.strip()), "")


def _has_ended(task: Any) -> bool:
    """Whether a task has written how it ended; what an earlier job of the same number wrote does not count."""
    try:
        written = task.paths.result_pickle.stat().st_mtime_ns
    except FileNotFoundError:
        return False
    try:
        return bool(written >= task.paths.submitted_pickle.stat().st_mtime_ns)
    except FileNotFoundError:
        return True


def refresh(folder: Path) -> None:
    """Have a network file system look again at what is in the folder."""
    try:
        folder.chmod(folder.stat().st_mode)
    except OSError:
        pass  # not ours, or not there: then its own cache has to run out
