"""What runs inside a job: the stage's command as a child process.

The command is a child, so that any stage can run, so that a signal reaches it and not the bookkeeping around it, and
so that its last words come back when it fails.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import submitit

from slurm.errors import StageFailed
from slurm.job_files import JobFiles, StageCall, append_line, read_json, write_json
from stages.attempts import PEER_LOST, STOPPED

FIRST_PORT, PORTS = 20_000, 20_000
POLL_S = 0.1
KILLED_TOGETHER_S = 3.0
"""Within this Slurm's SIGKILL reaches all processes of a job."""
_PR_SET_PDEATHSIG = 1


@dataclass
class StageJob:
    """The callable that submitit stores. It holds paths and texts only, so it can be stored again at a requeue."""

    call: StageCall
    fingerprint: str
    folder: str
    finish_step_s: int
    limit_s: float = float("inf")
    """After so many seconds a signal to stop means the time limit, not a preemption."""
    rendezvous_address: str | None = None
    part: int | None = None
    """Which part of a job array this is; None: the whole stage."""
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    told_to_end: bool = field(default=False, repr=False)
    began: float = field(default_factory=time.monotonic, repr=False)

    def __call__(self) -> str:
        """Run the command; returns the fingerprint of the call. StageFailed if it ends with another code than 0."""
        environment = submitit.JobEnvironment()
        files = JobFiles(Path(self.folder))
        sys.excepthook = _tell
        self.began = time.monotonic()
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if restarts and (read_json(self._mark(files)) or {}).get("job") == environment.job_id:
            return "finished before the requeue"  # requeued between its last line and its end: never run it twice
        first = environment.global_rank == 0
        if first:
            attempt = {"job": environment.job_id, "restart": restarts, "host": socket.gethostname()}
            attempt |= {} if self.part is None else {"part": self.part}
            append_line(files.attempts, attempt | {"event": "started", "time": time.time()})
        if environment.cluster == "slurm":
            signal.signal(signal.SIGTERM, self._end_step)
        if not first:
            signal.signal(signal.SIGUSR2, self._hear_of_end)
        self.child = subprocess.Popen(
            self.call.command, env=self._variables(environment), start_new_session=True, preexec_fn=self._prepare_child
        )
        try:
            while (code := self.child.poll()) is None:
                self.watch()
                time.sleep(POLL_S)
            if self._may_be_killed(code):
                time.sleep(KILLED_TOGETHER_S)
            # An end written while Slurm is ending the job would count as the stage's own, although the job may be
            # requeued. An OOM killer that took the child alone lets us live.
            while (environment.cluster == "slurm" or not first) and self._is_being_ended(code):
                time.sleep(POLL_S)
        finally:
            self._kill_child()
        self._judge(code)
        if first:
            self._finish(files, environment.job_id)
        return self.fingerprint

    def checkpoint(self) -> submitit.helpers.DelayedSubmission | None:
        """USR2 (time limit or preemption): let the stage end its step, then be requeued as the same call.

        None, which submitit reports as a failure, for a stage that would only run into the same limit again.
        """
        files = JobFiles(Path(self.folder))
        began = time.monotonic()
        self._stop_child()
        append_line(
            files.attempts, {"event": "stopped", "waited_s": round(time.monotonic() - began, 1), "time": time.time()}
        )
        if not self.call.resumes and began - self.began > self.limit_s:
            print(
                f"{self.call.name}: {self.call.stage} does not resume and ran into its time limit: "
                f"raise stages.{self.call.stage}.time_min in the site file",
                flush=True,
            )
            return None
        return submitit.helpers.DelayedSubmission(dataclasses.replace(self, child=None, told_to_end=False))

    def _prepare_child(self) -> None:
        """It ignores SIGTERM, which Slurm sends to every process of a job: it is told by USR2 to end its step."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        die_with_parent()

    def watch(self) -> None:
        """Called again and again while the command runs."""

    def _may_be_killed(self, code: int) -> bool:
        """Whether the command's end looks like the end of the whole job, of which this process has not heard yet."""
        return code == -signal.SIGKILL

    def _is_being_ended(self, code: int) -> bool:
        """Whether to wait for Slurm, which ends the job or requeues it, or for the launcher, which ends it."""
        return code != 0 and (self.told_to_end or code in (STOPPED, PEER_LOST))

    def _judge(self, code: int) -> None:
        """StageFailed unless the command ended well."""
        if code != 0:
            raise StageFailed(f"{self.call.name}: {' '.join(self.call.command[:4])} … ended with code {code}")

    def _end_step(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM: the job is being cancelled, requeued or preempted; the stage may use what time is left."""
        self.told_to_end = True
        if self.child is not None and not _has_ended(self.child.pid):
            os.kill(self.child.pid, signal.SIGUSR2)

    def _hear_of_end(self, number: int, frame: FrameType | None) -> None:
        """USR2 on another process than the first, which alone stops the stage and has the job requeued."""
        self.told_to_end = True

    def _stop_child(self) -> None:
        """Runs inside a signal handler, so it must not touch Popen's locks: waitid without reaping."""
        if self.child is None:
            return
        if not _has_ended(self.child.pid):
            os.kill(self.child.pid, signal.SIGUSR2)
        deadline = time.monotonic() + self.finish_step_s
        while not _has_ended(self.child.pid) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if not _has_ended(self.child.pid):
            os.kill(self.child.pid, signal.SIGKILL)

    def _kill_child(self) -> None:
        if self.child is not None and not _has_ended(self.child.pid):
            os.kill(self.child.pid, signal.SIGKILL)

    def _mark(self, files: JobFiles) -> Path:
        return files.finished if self.part is None else files.finished_part(self.part)

    def _finish(self, files: JobFiles, job_id: str) -> None:
        mark = {"job": job_id, "fingerprint": self.fingerprint, "time": time.time()}
        if self.part is not None:
            write_json(files.finished_part(self.part), mark)
            return
        missing = [output for output in self.call.outputs if not Path(output).exists()]
        if missing:
            raise StageFailed(f"{self.call.name}: the command ended well but did not write {', '.join(missing)}")
        files.keep(self.call.outputs)
        write_json(files.finished, mark)

    def _variables(self, environment: Any) -> Mapping[str, str]:
        """The child's environment; torch's rendezvous variables with it where the job has several processes."""
        if self.part is not None:
            return os.environ | {"STAGE_PART": str(self.part), "STAGE_PARTS": str(self.call.parts)}
        if environment.num_tasks == 1:
            return os.environ
        address = self.rendezvous_address or environment.hostnames[0]
        digits = "".join(c for c in environment.job_id if c.isdigit())
        return os.environ | {
            "RANK": str(environment.global_rank),
            "LOCAL_RANK": str(environment.local_rank),
            "WORLD_SIZE": str(environment.num_tasks),
            "LOCAL_WORLD_SIZE": str(environment.num_tasks // environment.num_nodes),
            "NODE_RANK": str(environment.node),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(FIRST_PORT + int(digits) % PORTS),
        }


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The end of a job in its log: a command that failed has told why, and a traceback of ours adds nothing to it."""
    if issubclass(kind, StageFailed):
        print(f"error: {error}", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


def die_with_parent() -> None:
    """Linux sends this process SIGKILL when the job's process ends, whatever ended that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # reaped already
