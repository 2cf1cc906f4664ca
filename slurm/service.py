"""A server as a job of its own, shared by all stages that need it: a judge beside the training runs.

A stage that needs the server holds it: a file below ``holders`` that its launcher keeps fresh. The first holder submits
the server's job, the last one to go ends it. Where launchers die nobody says goodbye; so the server's job itself looks
at the holders, and ends when for a while none has a living launcher or a living job. A server that is lost is submitted
again by whoever holds it.

endpoint.json   written by the server when it answers, removed by it when it ends: where to find it
holders/        one file for each stage that needs it
job.json, …     the files of every stage (see ``job_files``)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import submitit

from rised.config.paths import check_results_path
from slurm.errors import SchedulerAway, StageFailed
from slurm.job_files import JobFiles, StageCall, read_json, write_json
from slurm.jobs import Executor, JobSystem, Submitted, last_lines_of, last_words
from slurm.output import Output
from slurm.processes import is_alive
from slurm.queue import ALIVE, UNREACHABLE, job_state
from slurm.site import Site
from slurm.stage_job import StageJob, die_with_parent
from stages.attempts import STOPPED

ENDPOINT, HOLDERS = "endpoint.json", "holders"
FRESH_S = 90.0
"""A hold that was renewed within this counts; one whose launcher looks less often says so itself."""
LOOKS = 5
"""A launcher renews its hold, and looks after the server, at every so many looks at the queue."""
LOOK_S = 15.0
"""Between two looks of the server's job at its holders."""
MOST_SUBMISSIONS = 5
"""Of one launcher; a server that dies that often is not brought back again."""
WAIT_S, LONGEST_WAIT_S = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A stage that needs a server. ``folder``: the stage's, with its job.json."""

    name: str
    folder: Path


@dataclass
class ServiceJob(StageJob):
    """The server's command in its job; ends it when nobody holds the service for ``linger_s`` seconds."""

    linger_s: float = 300.0
    looked: float = 0.0
    needed: float = 0.0
    unneeded: bool = False
    job_id: str = ""

    def __call__(self) -> str:
        self.job_id = submitit.JobEnvironment().job_id
        (Path(self.folder) / ENDPOINT).unlink(missing_ok=True)  # of an attempt that had no time to remove it
        self.looked = self.needed = time.monotonic()
        return super().__call__()

    def _prepare_child(self) -> None:
        """A server may end at once, at Slurm's SIGTERM too."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()

    def watch(self) -> None:
        if time.monotonic() - self.looked < min(LOOK_S, self.linger_s):
            return
        self.looked = time.monotonic()
        served_by = (read_json(JobFiles(Path(self.folder)).job) or {}).get("job", "")
        if served_by not in ("", self.job_id):
            self._end(f"job {served_by} serves instead")
        elif any(holder_lives(path) for path in holder_files(Path(self.folder))):
            self.needed = time.monotonic()
        elif time.monotonic() - self.needed > self.linger_s:
            self._end("nobody needs it any more")

    def _end(self, why: str) -> None:
        print(f"{self.call.name}: {why}", flush=True)
        self.unneeded = True
        if self.child is not None:
            os.kill(self.child.pid, signal.SIGTERM)

    def _may_be_killed(self, code: int) -> bool:
        return not self.unneeded  # Slurm's SIGTERM may reach the server before it reaches us

    def _is_being_ended(self, code: int) -> bool:
        return not self.unneeded and (self.told_to_end or code == STOPPED)

    def _judge(self, code: int) -> None:
        if not self.unneeded:
            raise StageFailed(f"{self.call.name}: the server ended with code {code}, though it is needed")


class Service:
    """One server. ``call``: its command, which writes ``endpoint.json`` into ``folder`` once it answers.

    ``lingers``: after a stage that ended well the server stays for ``service_linger_s`` and then ends itself, since
    another stage follows; a server of a large model takes long to start.
    """

    def __init__(
        self,
        call: StageCall,
        site: Site,
        executor: Executor,
        folder: Path,
        stream: TextIO = sys.stdout,
        lingers: bool = False,
    ) -> None:
        self.call, self.site, self.executor, self.lingers = call, site, executor, lingers
        self.output = Output(call.name, stream)
        self.fingerprint = call.fingerprint()
        self.files = JobFiles(check_results_path(folder.absolute()))
        self.jobs = JobSystem(site, executor, self.files.folder)
        self._submissions = 0
        self._holder: Holder | None = None
        self._looked = 0.0

    @property
    def endpoint(self) -> Path:
        return self.files.folder / ENDPOINT

    @contextmanager
    def held(self, holder: Holder, check: Callable[[], None]) -> Iterator[None]:
        """The server answers from here on. ``check`` is called while waiting for it and may raise.

        The hold is given back when the stage has failed, was interrupted or is done. Otherwise (the launcher detaches,
        or fails itself) it stays behind: the stage's job may go on, and keeps the server alive.
        StageFailed if the server cannot be brought up.
        """
        (self.files.folder / HOLDERS).mkdir(parents=True, exist_ok=True)
        self._holder = holder
        self._renew()
        try:
            self._await_answer(check)
            yield
        except (StageFailed, KeyboardInterrupt):
            self._release()
            raise
        else:
            self._release(stays=self.lingers)

    def give_back(self, holder: Holder) -> None:
        """The hold of an earlier launcher of the same stage, whose job has ended."""
        self._holder = holder
        if self._hold_file().exists():
            self._release(stays=self.lingers)

    def keep_up(self) -> None:
        """Renew the hold, and submit the server again if it was lost; call it now and then while the stage runs."""
        if time.monotonic() - self._looked < LOOKS * self.site.poll_s:
            return
        self._looked = time.monotonic()
        try:
            self._renew()
            with self._lock():
                if self._living(refuse_other=False) is None and self._submissions < MOST_SUBMISSIONS:
                    self.output.say(f"the server is gone ({self._state()})")
                    self._submit()
        except (StageFailed, OSError) as error:
            self.output.say(f"trying again: {error}")  # the stage's own job is not touched by it

    def _await_answer(self, check: Callable[[], None]) -> None:
        told = False
        job: Submitted | None = None
        while True:
            check()
            self._renew()
            with self._lock():
                living = self._living()
                if living is None and job is not None and job.has_results() and job.failed_task(0) is not None:
                    self._fail(job, "failed")
                if living is None and self._submissions >= MOST_SUBMISSIONS:
                    self._fail(job, "was lost")
                try:
                    job = living or self._submit()
                except SchedulerAway:
                    continue
            if self.endpoint.is_file() and self.jobs.states(job)[0] in ("RUNNING", UNREACHABLE):
                self.output.say(f"answers (job {job.job_id})")
                return
            if not told:
                told = True
                self.output.say(f"waiting for job {job.job_id} to answer; log {job.only.paths.stdout}")
            time.sleep(max(WAIT_S, min(self.site.poll_s, LONGEST_WAIT_S)))

    def _known(self) -> Submitted | None:
        """The server's job by its record; None if there is none. StageFailed if it is another executor's."""
        known = read_json(self.files.job)
        if known is None or known["end"] is not None or not known["job"]:
            return None
        if known["executor"] != self.executor:
            raise StageFailed(
                f"{self.call.name}: job {known['job']} was submitted through {known['executor']!r} and may still "
                f"serve; use that executor, or end it and remove {self.files.job}"
            )
        return self.jobs.known(known)

    def _living(self, refuse_other: bool = True) -> Submitted | None:
        """The server's job, if it lives. Under the lock. StageFailed if it serves with other settings."""
        job = self._known()
        if job is None:
            return None
        known = read_json(self.files.job) or {}
        state = self.jobs.states(job)[0]
        if state not in ALIVE and state != UNREACHABLE:
            return None
        if refuse_other and known["fingerprint"] != self.fingerprint:
            holders = ", ".join(path.stem for path in holder_files(self.files.folder))
            raise StageFailed(
                f"{self.call.name}: job {known['job']} ({state}) serves with another command or settings: wait for "
                f"those who need it ({holders}), or end it (scancel {known['job']})"
            )
        return job

    def _state(self) -> str:
        known = read_json(self.files.job)
        if known is None:
            return "never submitted"
        return known["end"] or self.jobs.states(self.jobs.known(known))[0]

    def _submit(self) -> Submitted:
        """Under the lock."""
        self._submissions += 1
        self.endpoint.unlink(missing_ok=True)
        site = self.site
        if self.jobs.task_count(self.call.stage) > 1:
            raise StageFailed(
                f"{self.call.name} is one process: set nodes and tasks_per_node of {self.call.stage} to 1"
            )
        folder, linger_s = str(self.files.folder), site.service_linger_s
        server = ServiceJob(self.files.pin(self.call), self.fingerprint, folder, site.finish_step_s, linger_s=linger_s)
        job = self.jobs.submit(self.call.stage, self.call.name, {0: server})
        self.files.write_job(self.call, self.fingerprint, self.executor, job.job_id, job.born, [0], 1)
        self.output.say(f"submitted job {job.job_id}")
        return job

    def _fail(self, job: Submitted | None, how: str) -> None:
        log = None if job is None else Path(job.only.paths.stdout)
        lines = [] if log is None else last_lines_of(log)
        self.files.close_job(how, last_words(lines))
        raise StageFailed("\n".join([f"{self.call.name}: its job {how}", f"log: {log}", *lines]))

    def _renew(self) -> None:
        assert self._holder is not None
        record = {"name": self._holder.name, "folder": str(self._holder.folder), "pid": os.getpid()}
        fresh_s = max(FRESH_S, 2 * LOOKS * self.site.poll_s)
        write_json(self._hold_file(), record | {"fresh_s": fresh_s, "time": time.time()})

    def _hold_file(self) -> Path:
        assert self._holder is not None
        key = hashlib.sha256(str(self._holder.folder).encode()).hexdigest()[:8]  # other results, other holder
        return self.files.folder / HOLDERS / f"{self._holder.name}-{key}.json"

    def _release(self, stays: bool = False) -> None:
        """Give the hold back; the last one to do so ends the server, unless it ``stays`` for whoever follows."""
        self._hold_file().unlink(missing_ok=True)
        if stays:
            return
        with self._lock():
            if any(holder_lives(path) for path in holder_files(self.files.folder)):
                return
            try:
                job = self._known()
            except StageFailed:
                return  # another executor's: it ends itself
            if job is None:
                return
            if trouble := self.jobs.cancel(job):
                self.output.say(f"job {job.job_id} could not be ended ({trouble}); it ends itself after a while")
                return
            self.files.close_job("stopped")
            self.endpoint.unlink(missing_ok=True)
            self.output.say(f"nobody needs it any more: job {job.job_id} ended")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self.files.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def service_call(stage: str, folder: Path, command: Sequence[str], inputs: tuple[str, ...] = ()) -> StageCall:
    """The call of a server. It resumes: one that is preempted serves again."""
    return StageCall(f"{stage}-{folder.name}", stage, tuple(command), inputs, (), resumes=True)


def holder_files(service: Path) -> list[Path]:
    """The holds on a service, whether alive or not."""
    return sorted((service / HOLDERS).glob("[!.]*.json"))


def holder_lives(path: Path) -> bool:
    """Whether a hold counts: its launcher renewed it lately, or the job of its stage lives. In doubt it does."""
    try:
        age_s = _time_of_the_file_system(path.parent) - path.stat().st_mtime
    except FileNotFoundError:
        return False
    except OSError:
        return True
    hold = read_json(path)
    if hold is not None and age_s < hold["fresh_s"]:
        return True
    job = None if hold is None else read_json(JobFiles(Path(hold["folder"])).job)
    if job is None or job["end"] is not None or not job["job"]:
        return False
    if job["executor"] != "slurm":
        return job["executor"] == "local" and is_alive(int(job["job"]), job["born"])
    return job_state(job["job"]) in ALIVE | {UNREACHABLE}


def _time_of_the_file_system(folder: Path) -> float:
    """The clock by which its files are dated, where it has one: machines' clocks differ."""
    probe = folder / f".clock-{socket.gethostname()}-{os.getpid()}"
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink(missing_ok=True)
    return now
