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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from rised.config.paths import check_results_path
from slurm.errors import Detached, SchedulerAway, StageFailed
from slurm.job_files import JobFiles, StageCall, read_json
from slurm.jobs import Executor, JobSystem, Submitted, how_it_ended, refresh
from slurm.output import Output
from slurm.queue import ALIVE, ENDING, GONE, UNREACHABLE, WAITING, most_array_parts
from slurm.service import Holder, Service
from slurm.site import Site
from slurm.stage_job import StageJob

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNAL_EARLY_S = 65
"""Slurm may send the signal before a time limit up to a minute earlier than asked."""
FOLLOW_S = 0.5


class Launcher:
    """Brings one stage's result about. ``folder``: the stage's own, shared by launchers and jobs.

    ``services``: servers that its job needs; they run before it is submitted, and end when nobody needs them any more.
    """

    def __init__(
        self,
        call: StageCall,
        site: Site,
        executor: Executor,
        folder: Path,
        stream: TextIO = sys.stdout,
        services: Sequence[Service] = (),
    ):
        self.site, self.executor, self.services = site, executor, services
        self.output = Output(call.name, stream)
        self.call, self.fingerprint = call, call.fingerprint()
        self.files = JobFiles(check_results_path(folder.absolute()))
        self.jobs = JobSystem(site, executor, self.files.folder)
        self.signals: list[int] = []
        self._read_to = 0
        self._ended_parts = -1

    @cached_property
    def pinned(self) -> StageCall:
        """The call as jobs get it: with a copy of its experiment file, taken once for all jobs of this launcher."""
        return self.files.pin(self.call)

    @property
    def _is_array(self) -> bool:
        return self.call.parts > 1 and self.executor == "slurm"

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
                if self._is_array:
                    self._run_array()
                else:
                    self._run_job()
            if self._is_array:
                self._put_together()
            self.files.close_job("done")
            self.output.say("done")

    def script(self) -> str:
        """The batch script that Slurm would get, submitting nothing."""
        if self.executor != "slurm":
            return " ".join(self.call.command) + "\n"
        return self.jobs.script(self.call.stage, self._job_name())

    def _run_job(self) -> None:
        found = self._job()
        if found is not None and found.has_results():
            job = found
            for service in self.services:
                service.give_back(self._holder())
            self._wait(job)
        else:
            with self._services_held(found):
                job = found or self._submit([0])
                self._wait(job)
        self._settle(job)
        self._put_back(job)

    def _run_array(self) -> None:
        """Only the parts that are not done yet."""
        if self._parts_to_do():
            self._refuse_processes("a part of a job array")
            found = self._job()
            with self._services_held(found):
                self._run_parts(found)
        deadline = time.monotonic() + self.site.lost_after_s
        while left := self._parts_to_do():
            if time.monotonic() > deadline:
                raise StageFailed(f"{self.call.name}: the marks of parts {left} are not visible here: run again")
            time.sleep(FOLLOW_S)

    def _run_parts(self, found: Submitted | None) -> None:
        """All parts that are to do, in as many job arrays one after the other as the site's MaxArraySize asks for.

        ``found``: an array of them that is there already. StageFailed, after the last array, if a part failed.
        """
        tried: set[int] = set()
        failures: list[str] = []
        limit = most_array_parts() or self.call.parts
        while left := [part for part in self._parts_to_do() if part not in tried]:
            job = found or self._submit(left[:limit])
            try:
                self._wait(job)
            except StageFailed as error:
                failures.append(str(error))
            self._settle(job)
            tried.update(job.parts)
            found = None
        if failures:
            self.files.close_job("failed", failures[0].splitlines()[-1])
            raise StageFailed("\n".join(failures))

    def _parts_to_do(self) -> list[int]:
        return self.files.parts_to_do(self.call.parts, self.fingerprint)

    def _put_together(self) -> None:
        """The command without a part, here; it may be interrupted as any command."""
        try:
            self._run_command()
        except StageFailed as error:
            self.files.close_job("failed", str(error))
            raise
        self.files.forget_parts()

    def _refuse_processes(self, what: str) -> None:
        if self.jobs.task_count(self.call.stage) > 1:
            raise StageFailed(
                f"{self.call.name}: {what} is one process, but the stage's resources ask for several: "
                f"set nodes and tasks_per_node of {self.call.stage} to 1"
            )

    def _run_here(self) -> None:
        """In this process, so that a debugger and the terminal reach it; the output is not kept."""
        self.files.forget_result()
        self._write_job(Submitted(f"here-{os.getpid()}", {0: None}))
        try:
            with self._services_held(None):
                self._run_command()
        except StageFailed as error:
            self.files.close_job("failed", str(error))
            raise
        self.files.close_job("done")

    def _run_command(self) -> None:
        os.environ["SUBMITIT_DEBUG_JOB_ID"] = f"here-{os.getpid()}"
        self._stage_job()()

    # -- finding or making the job

    def _job(self) -> Submitted | None:
        """A job of this very call that lives or has a result nobody took over; None if there is none."""
        known = read_json(self.files.job)
        if known is None or known["end"] is not None or known["executor"] == "debug" or not known["job"]:
            return self._job_by_name(known)
        job_id, same = known["job"], known["fingerprint"] == self.fingerprint
        if known["executor"] != self.executor:
            raise StageFailed(
                f"{self.call.name}: job {job_id} was submitted through {known['executor']!r} and may still run; "
                f"use that executor, or end it and remove {self.files.job}"
            )
        job = self.jobs.known(known)
        state = _most_alive(self._known_states(job))
        if state in ALIVE:
            if not same:
                raise StageFailed(
                    f"{self.call.name}: job {job_id} ({state}) runs with another command or older inputs: "
                    f"wait for it, or end it (scancel {job_id}) and run again"
                )
            self.output.say(f"attached to job {job_id} ({state})")
            return job
        if same and not self._is_array and self.files.finished.is_file() and job.has_results():
            if job.failed_task(0) is None:
                self.output.say(f"job {job_id} finished while nobody watched")
                return job
        return self._job_by_name(known)

    def _job_by_name(self, known: Mapping[str, Any] | None) -> Submitted | None:
        """A job whose launcher died between its submission and writing its id down. ``known``: the record, if any."""
        while (found := self.jobs.find(self._job_name())) is None or set(found.values()) == {ENDING}:
            self.output.say_once("waiting for Slurm to answer, or for an earlier job to end")
            self._answer_signals(None)
            time.sleep(self.site.poll_s)
        living = [job_id for job_id, state in found.items() if state != ENDING]
        if not living:
            return None
        parts = known["parts"] if known is not None else [0]
        tasks = self.jobs.task_count(self.call.stage)
        job = self.jobs.known({"job": living[0], "parts": parts, "tasks": tasks})
        known_parts = not self._is_array or (known is not None and known["job"] in ("", living[0]))
        if not known_parts or not all(part.paths.submitted_pickle.exists() for part in job.parts.values()):
            self.jobs.cancel(job)  # its launcher died before the call lay where the job looks for it
            return self._job_by_name(known)
        self.output.say(f"attached to job {living[0]}, found by its name")
        self._write_job(job)
        return job

    def _known_states(self, job: Submitted) -> dict[int, str]:
        """The job's states, waiting for Slurm to answer."""
        while UNREACHABLE in (states := self.jobs.states(job)).values():
            self.output.say_once("waiting for Slurm to answer")
            self._answer_signals(job)
            time.sleep(self.site.poll_s)
        return states

    def _submit(self, parts: Sequence[int]) -> Submitted:
        if not self._is_array:
            self.files.forget_result()
        self._ended_parts = -1
        self._write_job(Submitted("", dict.fromkeys(parts)))
        calls = {part: self._stage_job(part if self._is_array else None) for part in parts}
        while True:
            try:
                job = self.jobs.submit(self.call.stage, self._job_name(), calls)
                break
            except SchedulerAway as error:
                self.output.say_once(f"{error}; trying again")
                self._answer_signals(None)
                time.sleep(self.site.poll_s)
                if found := self._job_by_name(read_json(self.files.job)):  # it may have been accepted all the same
                    return found
        self._write_job(job)
        where = job.only.paths.stdout if not self._is_array else f"{len(parts)} parts, logs below {self.files.folder}"
        self.output.say(f"submitted job {job.job_id}; log {where}")
        return job

    def _stage_job(self, part: int | None = None) -> StageJob:
        limit_s = 60 * self.site.resources(self.call.stage).time_min - self.site.signal_delay_s - SIGNAL_EARLY_S
        return StageJob(
            self.call if self.executor == "debug" else self.pinned,
            self.fingerprint,
            str(self.files.folder),
            self.site.finish_step_s,
            limit_s,
            self.site.rendezvous_address,
            part,
        )

    def _job_name(self) -> str:
        """Unique to the call and the stage's folder, so that a job can be found by it."""
        key = f"{self.fingerprint}/{self.files.folder}"
        return f"{self.call.name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def _write_job(self, job: Submitted) -> None:
        tasks = self.jobs.task_count(self.call.stage)
        parts = list(job.parts)
        self.files.write_job(self.call, self.fingerprint, self.executor, job.job_id, job.born, parts, tasks)

    # -- staying with it

    def _wait(self, job: Submitted) -> None:
        """Until every part has a result or is lost. A job of several tasks ends with the first of them that fails."""
        asked = 0.0
        patience_s = self.site.lost_after_s if self.executor == "slurm" else 0.0  # here a result is visible at once
        gone_since: dict[int, float] = {}
        lost: dict[int, str] = {}
        while waiting := [part for part in job.parts if part not in lost and not job.has_result(part)]:
            self._answer_signals(job)
            self._follow(job)
            if time.monotonic() - asked >= self.site.poll_s:
                asked = time.monotonic()
                states = self.jobs.states(job)
                for part in waiting:
                    if states[part] in ALIVE or states[part] == UNREACHABLE:
                        gone_since.pop(part, None)
                    elif asked - gone_since.setdefault(part, asked) > patience_s:
                        lost[part] = states[part]
                    else:
                        refresh(Path(job.tasks(part)[0].paths.folder))
                for service in self.services:
                    service.keep_up()
            for part in waiting:
                if len(job.tasks(part)) > 1 and job.failed_task(part) is not None:
                    self.jobs.cancel(job, part)  # the others would wait for it
                    lost[part] = "a process failed"
            time.sleep(FOLLOW_S)
        self._follow(job)
        failed = {part: job.failed_task(part) for part in job.parts}
        if any(failed.values()) or lost:
            self._fail(job, failed, lost)

    def _settle(self, job: Submitted) -> None:
        """A job that was requeued after it had finished must not run again."""
        if self.executor == "slurm":
            for part, state in self.jobs.states(job).items():
                if state in WAITING:
                    self.jobs.cancel(job, part)

    def _put_back(self, job: Submitted) -> None:
        """Outputs, and the job's links to them, may become visible here later than its result did."""
        deadline = time.monotonic() + self.site.lost_after_s
        while True:
            try:
                return self.files.put_back(self.call.outputs)
            except FileNotFoundError as error:
                if time.monotonic() > deadline:
                    how = f"ended well, but {error.filename} is not visible on this machine"
                    self.files.close_job(how)
                    raise StageFailed(f"{self.call.name}: job {job.job_id} {how}") from None
            time.sleep(FOLLOW_S)

    def _fail(self, job: Submitted, failed: Mapping[int, Any], lost: Mapping[int, str]) -> None:
        text, last_line = how_it_ended(job, self.call.name, failed, lost)
        self.files.close_job("failed" if not lost else "ended without a result", last_line)
        raise StageFailed(text)

    def _follow(self, job: Submitted) -> None:
        """Copy what the job has written since the last look; of an array say how many parts have ended."""
        if self._is_array:
            ended = sum(map(job.has_result, job.parts))
            if ended != self._ended_parts:
                self._ended_parts = ended
                self.output.say(f"{ended} of {len(job.parts)} parts have ended")
            return
        try:
            with open(job.only.paths.stdout, errors="replace") as log:
                log.seek(self._read_to)
                text = log.read()
                self._read_to = log.tell()
        except OSError:
            return
        self.output.write(text)

    # -- services

    def _holder(self) -> Holder:
        return Holder(self.call.name, self.files.folder)

    @contextmanager
    def _services_held(self, job: Submitted | None) -> Iterator[None]:
        """Servers run as long as this stage's job needs them. ``job``: the stage's, if it runs already."""
        holder = self._holder()
        with ExitStack() as stack:
            for service in self.services:
                stack.enter_context(service.held(holder, lambda: self._answer_signals(job)))
            yield

    # -- signals, lock, output

    def _answer_signals(self, job: Submitted | None) -> None:
        """``job``: None while there is none yet."""
        if not self.signals:
            return
        if signal.SIGHUP in self.signals:
            what = "nothing was submitted yet" if job is None else f"job {job.job_id} goes on"
            raise Detached(f"{self.call.name}: {what}; the same command goes on from here")
        if job is None:
            raise KeyboardInterrupt
        trouble = self.jobs.cancel(job)
        if trouble:
            self.output.say(f"job {job.job_id} may still run, it could not be cancelled: {trouble}")
        else:
            self.files.close_job("cancelled")
            self.output.say(f"job {job.job_id} cancelled")
        raise KeyboardInterrupt

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


def _most_alive(states: Mapping[int, str]) -> str:
    """One word for a job's parts: that of one that lives, if any does."""
    return next((state for state in states.values() if state in ALIVE), next(iter(states.values()), GONE))
