"""Submits a stage as a job, or finds the job that an earlier launcher submitted, and stays until its result is there.

One launcher a stage at a time (a file lock). It may die at any moment: the next one re-attaches to the job, or takes
the result over when the job has ended meanwhile. A job counts as ended well only by the result that it wrote; Slurm's
own states only tell whether a result may still come.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TextIO

import submitit
from submitit.core.utils import FailedJobError

from rised.config.paths import check_results_path
from slurm.errors import Detached, StageFailed
from slurm.job_files import JobFiles, StageCall, read_json, write_json
from slurm.queue import ALIVE, ENDING, GONE, UNREACHABLE, WAITING, cancel, find_jobs, job_state
from slurm.site import Site, executor_parameters
from slurm.stage_job import StageJob

Executor = Literal["slurm", "local", "debug"]
HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_LINES = 25
SIGNAL_EARLY_S = 65
"""Slurm may send the signal before a time limit up to a minute earlier than asked."""
NO_LOG = "(no log: the folder must be visible on the nodes, and stay while the job waits)"
OWN_TRACEBACK = "submitit ERROR"
"""What follows in a log is the launcher's traceback, not the stage's."""
FOLLOW_S = 0.5


class Launcher:
    """Brings one stage's result about. ``folder``: the stage's own, shared by launchers and jobs."""

    def __init__(self, call: StageCall, site: Site, executor: Executor, folder: Path, stream: TextIO = sys.stdout):
        self.call, self.site, self.executor, self.stream = call, site, executor, stream
        self.files = JobFiles(check_results_path(folder.absolute()))
        self.signals: list[int] = []
        self._read_to = 0

    def run(self) -> None:
        """Return when the outputs are there.

        Raises StageFailed with the end of the job's log, KeyboardInterrupt after SIGINT or SIGTERM (the job is
        cancelled), Detached after SIGHUP (it stays).
        """
        self.files.folder.mkdir(parents=True, exist_ok=True)
        with self._only_launcher():
            if self.executor == "debug":
                self._run_here()
                return
            with self._own_signals():
                job = self._job() or self._submit()
                self._wait(job)
                self._put_back(job)
            self._close("done")
            self._say("done")

    def script(self) -> str:
        """The batch script that Slurm would get, submitting nothing."""
        executor: Any = self._executor()
        if self.executor != "slurm":
            return " ".join(self.call.command) + "\n"
        inner = executor._executor
        return str(inner._make_submission_file_text(inner._submitit_command_str, "dry-run"))

    def _run_here(self) -> None:
        """In this process, so that a debugger and the terminal reach it; the output is not kept."""
        job_id = f"here-{os.getpid()}"
        os.environ["SUBMITIT_DEBUG_JOB_ID"] = job_id
        self.files.forget_result()
        self._write_job(job_id)
        try:
            self._stage_job()()
        except StageFailed as error:
            self._close("failed", str(error))
            raise
        self._close("done")

    # -- finding or making the job

    def _job(self) -> Any:
        """A job of this very call that lives or has a result nobody took over; None if there is none."""
        known = read_json(self.files.job)
        if known is None or known["end"] is not None or known["executor"] == "debug":
            return self._job_by_name()
        job_id, same = known["job"], known["fingerprint"] == self.call.fingerprint()
        if known["executor"] != self.executor:
            raise StageFailed(
                f"{self.call.name}: job {job_id} was submitted through {known['executor']!r} and may still run; "
                f"use that executor, or end it and remove {self.files.job}"
            )
        job = self._handle(job_id, known["tasks"])
        state = self._known_state(job)
        if state in ALIVE:
            if not same:
                raise StageFailed(
                    f"{self.call.name}: job {job_id} ({state}) runs with another command or older inputs: "
                    f"wait for it, or end it (scancel {job_id}) and run again"
                )
            self._say(f"attached to job {job_id} ({state})")
            return job
        if same and self.files.finished.is_file() and _has_results(job) and job.exception() is None:
            self._say(f"job {job_id} finished while nobody watched")
            return job
        return self._job_by_name()

    def _job_by_name(self) -> Any:
        """A job whose launcher died between its submission and writing its id down."""
        if self.executor != "slurm":
            return None
        while (jobs := find_jobs(self._job_name())) is None or set(jobs.values()) == {ENDING}:
            self._answer_signals(None)  # Slurm is silent, or an earlier job is about to go
            time.sleep(self.site.poll_s)
        living = [job_id for job_id, state in jobs.items() if state != ENDING]
        if not living:
            return None
        job = self._handle(living[0], self._task_count())
        if not job.paths.submitted_pickle.exists():
            cancel(living[0])  # its launcher died before the call lay where the job looks for it
            return self._job_by_name()
        self._say(f"attached to job {living[0]}, found by its name")
        self._write_job(living[0])
        return job

    def _known_state(self, job: Any) -> str:
        """The job's state, waiting for Slurm to answer."""
        while (state := self._state(job)) == UNREACHABLE:
            self._answer_signals(job)
            time.sleep(self.site.poll_s)
        return state

    def _submit(self) -> Any:
        self.files.forget_result()
        executor = self._executor()
        try:
            with _outside_of_jobs():
                job = executor.submit(self._stage_job())
        except FailedJobError as error:
            raise StageFailed(f"{self.call.name}: the job was not accepted: {error}".strip()) from None
        self._write_job(job.job_id)
        self._say(f"submitted job {job.job_id}; log {job.paths.stdout}")
        return job

    def _stage_job(self) -> StageJob:
        limit_s = 60 * self.site.resources(self.call.stage).time_min - self.site.signal_delay_s - SIGNAL_EARLY_S
        return StageJob(
            self.call, str(self.files.folder), self.site.finish_step_s, limit_s, self.site.rendezvous_address
        )

    def _executor(self) -> Any:
        options: dict[str, Any] = {}
        if self.executor == "slurm":
            options = {"slurm_max_num_timeout": self.site.most_timeouts}
            if self.site.python:
                options["slurm_python"] = self.site.python
        executor = submitit.AutoExecutor(folder=str(self.files.folder / "%j"), cluster=self.executor, **options)
        executor.update_parameters(**executor_parameters(self.site, self.call.stage, self._job_name()))
        return executor

    def _handle(self, job_id: str, tasks: int) -> Any:
        classes = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}
        return classes[self.executor](folder=str(self.files.folder / "%j"), job_id=job_id, tasks=list(range(tasks)))

    def _task_count(self) -> int:
        wanted = self.site.resources(self.call.stage)
        return wanted.nodes * wanted.tasks_per_node

    def _job_name(self) -> str:
        """Unique to the call and the stage's folder, so that a job can be found by it."""
        key = f"{self.call.fingerprint()}/{self.files.folder}"
        return f"{self.call.name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def _write_job(self, job_id: str) -> None:
        record: dict[str, Any] = {"job": job_id, "executor": self.executor, "fingerprint": self.call.fingerprint()}
        record |= {"name": self.call.name, "outputs": self.call.outputs, "tasks": self._task_count()}
        record |= {"end": None, "last_line": ""}
        write_json(self.files.job, record)

    def _close(self, end: str, last_line: str = "") -> None:
        """The job's result was taken over, or there will be none: no later launcher may attach to it."""
        record = read_json(self.files.job)
        if record is not None:
            write_json(self.files.job, record | {"end": end, "last_line": last_line})

    # -- staying with it

    def _wait(self, job: Any) -> None:
        asked = 0.0
        unknown_since: float | None = None
        while not _has_results(job):
            self._answer_signals(job)
            self._follow(job)
            if time.monotonic() - asked >= self.site.poll_s:
                asked = time.monotonic()
                state = self._state(job)
                if state in ALIVE or state == UNREACHABLE:
                    unknown_since = None
                elif unknown_since is None:
                    unknown_since = asked
            if unknown_since is not None and time.monotonic() - unknown_since > self.site.lost_after_s:
                self._fail(job, f"ended ({state}) without a result")
            time.sleep(FOLLOW_S)
        self._follow(job)
        self._settle(job)

    def _settle(self, job: Any) -> None:
        """Judge the job by its result alone."""
        error = job.exception()
        if error is not None:
            self._fail(job, "failed")
        if self.executor == "slurm" and job_state(job.job_id) in WAITING:
            cancel(job.job_id)  # requeued after it had finished

    def _put_back(self, job: Any) -> None:
        """Outputs, and the job's links to them, may become visible here later than its result did."""
        deadline = time.monotonic() + self.site.lost_after_s
        while True:
            try:
                return self.files.put_back(self.call.outputs)
            except FileNotFoundError as error:
                if time.monotonic() > deadline:
                    self._fail(job, f"ended well, but {error.filename} is not visible on this machine")
            time.sleep(FOLLOW_S)

    def _state(self, job: Any) -> str:
        if self.executor == "slurm":
            return job_state(job.job_id)
        return "RUNNING" if _is_alive(int(job.job_id)) else GONE

    def _fail(self, job: Any, how: str) -> None:
        self._follow(job)
        log = Path(job.paths.stdout)
        text = log.read_text(errors="replace") if log.is_file() else NO_LOG
        lines = text.partition(OWN_TRACEBACK)[0].splitlines()[-LAST_LINES:]
        self._close(how, next((line for line in reversed(lines) if line.strip()), ""))
        raise StageFailed("\n".join([f"{self.call.name}: job {job.job_id} {how}", f"log: {log}", *lines]))

    def _follow(self, job: Any) -> None:
        """Copy what the job has written since the last look."""
        try:
            with open(job.paths.stdout, errors="replace") as log:
                log.seek(self._read_to)
                text = log.read()
                self._read_to = log.tell()
        except OSError:
            return
        self._write(text)

    # -- signals, lock, output

    def _answer_signals(self, job: Any) -> None:
        """``job``: None while there is none yet."""
        if not self.signals:
            return
        if job is None:
            raise KeyboardInterrupt
        if signal.SIGHUP in self.signals:
            raise Detached(f"{self.call.name}: job {job.job_id} goes on; the same command attaches to it")
        trouble = self._cancel(job)
        if trouble:
            self._say(f"job {job.job_id} may still run, it could not be cancelled: {trouble}")
        else:
            self._close("cancelled")
            self._say(f"job {job.job_id} cancelled")
        raise KeyboardInterrupt

    def _cancel(self, job: Any) -> str:
        """End the job; "" or what hindered it."""
        if self.executor == "slurm":
            return cancel(job.job_id)
        try:
            os.kill(int(job.job_id), signal.SIGINT)
        except ProcessLookupError:
            pass
        return ""

    @contextmanager
    def _own_signals(self) -> Iterator[None]:
        def remember(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)

        # What the caller ignores (nohup: SIGHUP) stays ignored.
        heeded = [n for n in HEEDED if signal.getsignal(n) is not signal.SIG_IGN]
        before = {n: signal.signal(n, remember) for n in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _only_launcher(self) -> Iterator[None]:
        with self.files.lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StageFailed(
                    f"{self.call.name}: another launcher is with this stage ({self.files.lock})"
                ) from None
            yield

    def _say(self, text: str) -> None:
        self._write(f"[{time.strftime('%H:%M:%S')}] {self.call.name}: {text}\n")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            pass  # a closed terminal must not keep the launcher from its job


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


def _has_results(job: Any) -> bool:
    """Whether every task of the job has written how it ended."""
    return all(part.paths.result_pickle.exists() for part in (list(job._sub_jobs) or [job]))


def _is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
