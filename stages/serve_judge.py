"""serve_judge: serve the judge's model, and keep a file that says where.

Reads a judge file (or an experiment that extends one); starts `judge_server.replicas` servers, by default vLLM's;
writes the endpoint file once all are ready, with `urls`, `model`, `job`, `host`, `started`, `pid`. While it serves, a
replica that dies or hangs is taken out of the file, restarted, and put back. Runs until it is told to end: SIGTERM or
SIGINT end it with code 0, SIGUSR2 with code 75, after which it may be started again elsewhere. The file goes first.

    python -m stages.serve_judge --config configs/judges/qwen3_32b.yaml \\
        --endpoint results/services/qwen3_32b/endpoint.json
    python -m stages.train ... --set rubrics.judge.endpoint=results/services/qwen3_32b/endpoint.json
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import httpx

from rised.config import ConfigError, Settings, operational, strict
from rised.config.loader import bind
from rised.config.overlays import apply_overrides, compose
from rised.config.resolved import dump
from rised.config.source import Mapping
from rised.records.files import write_bytes
from rised.rubrics.judge_endpoint import is_url, read_endpoint
from rised.rubrics.settings import JudgeServerSettings, LlmJudgeSettings, RubricSettings
from stages.attempts import STOPPED
from stages.cli import run_stage, stage_parser
from stages.judge_replica import Replica, command, slices

TICK_S = 0.1
WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class JudgeFile(Settings):
    """What this stage reads of a judge file or an experiment."""

    rubrics: RubricSettings = strict(description="Vocabulary and judge.")
    judge_server: JudgeServerSettings = operational(JudgeServerSettings(), description="How the judge is served.")


class StartFailed(Exception):
    """A server that never became ready; the message holds the end of its log."""


class JudgeServer:
    """The replicas and the endpoint file. ``serve`` returns the signal that ended it."""

    def __init__(self, judge: LlmJudgeSettings, server: JudgeServerSettings, endpoint: Path, logs: Path) -> None:
        self.judge, self.server, self.endpoint = judge, server, endpoint
        devices = slices(server, os.environ)
        self.replicas = [
            Replica(i, judge, server, devices[i], logs / f"replica-{i}.log") for i in range(server.replicas)
        ]
        self.client = httpx.Client(timeout=server.health_timeout_s, trust_env=False)
        self.signal: int | None = None
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._written: list[str] | None = None

    def serve(self) -> int:
        """Start, serve and end. StartFailed if a replica never becomes ready, or none is left that could."""
        for number in WATCHED:
            # A launcher that announces the end by SIGUSR2 may have the others ignored: that stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        try:
            for replica in self.replicas:
                self._start(replica)
            self._await_all()
            checked = time.monotonic()
            while self.signal is None:
                due = time.monotonic() - checked >= self.server.health_every_s
                for replica in self.replicas:
                    self._watch(replica, due)
                checked = time.monotonic() if due else checked
                self._publish()
                if all(replica.pid is None for replica in self.replicas):
                    raise StartFailed(f"no replica is left; the last log ends:\n{self.replicas[-1].tail()}")
                time.sleep(TICK_S)
            return self.signal or 0
        finally:
            self.end()

    def end(self) -> None:
        """Withdraw the endpoint file, then end every server that was started here."""
        found = read_endpoint(self.endpoint)
        if found is not None and (found.pid, found.host) == (os.getpid(), socket.gethostname()):
            self.endpoint.unlink(missing_ok=True)
        for replica in self.replicas:
            replica.ask_to_end()
        for replica in self.replicas:
            replica.end(self.server.stop_grace_s)
        self.client.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    def _start(self, replica: Replica) -> None:
        replica.start(frozenset(other.port for other in self.replicas if other is not replica))
        say(f"replica {replica.number}: port {replica.port}, pid {replica.pid}, log {replica.log}")

    def _await_all(self) -> None:
        """Return when every replica is ready, or on a signal. Nothing is restarted yet: a first start that fails is a
        matter of the configuration.
        """
        while self.signal is None:
            waiting = [replica for replica in self.replicas if not replica.healthy]
            if not waiting:
                return
            for replica in waiting:
                if replica.dead():
                    raise StartFailed(
                        f"replica {replica.number} ended before it was ready; its log ends:\n{replica.tail()}"
                    )
                replica.healthy = replica.check(self.client)
                if replica.healthy:
                    say(f"replica {replica.number}: ready after {time.monotonic() - replica.started:.0f} s")
                elif replica.too_late():
                    raise StartFailed(
                        f"replica {replica.number} was not ready after {self.server.start_timeout_s:g} s "
                        f"(judge_server.start_timeout_s); its log ends:\n{replica.tail()}"
                    )
            time.sleep(TICK_S)

    def _watch(self, replica: Replica, check_due: bool) -> None:
        """Replace a replica that died or hangs; notice one that is ready again."""
        if replica.pid is None:
            return
        if replica.dead():
            self._replace(replica, "died")
        elif replica.healthy and check_due:
            if not replica.check(self.client) and replica.failed_checks >= self.server.unhealthy_checks:
                self._replace(replica, f"failed {replica.failed_checks} health checks")
        elif not replica.healthy:
            replica.healthy = replica.check(self.client)
            if replica.healthy:
                say(f"replica {replica.number}: ready again after {time.monotonic() - replica.started:.0f} s")
            elif replica.too_late():
                self._replace(replica, "did not become ready")

    def _replace(self, replica: Replica, why: str) -> None:
        replica.healthy = False
        self._publish()
        replica.ask_to_end()
        replica.end(self.server.stop_grace_s)
        if replica.restarts >= self.server.max_restarts:
            say(f"replica {replica.number}: {why}; stays out after {replica.restarts} restarts:\n{replica.tail()}")
            return
        replica.restarts += 1
        say(f"replica {replica.number}: {why}; restart {replica.restarts} of {self.server.max_restarts}")
        self._start(replica)

    def _publish(self) -> None:
        """Write the endpoint file if the set of ready replicas changed."""
        urls = [replica.url for replica in self.replicas if replica.healthy]
        if urls == self._written:
            return
        content = {
            "urls": urls,
            "model": self.judge.model,
            "job": os.environ.get("SLURM_JOB_ID"),
            "host": socket.gethostname(),
            "started": self._started,
            "pid": os.getpid(),
        }
        write_bytes(self.endpoint, json.dumps(content, indent=1).encode() + b"\n")
        self._written = urls
        say(f"{self.endpoint}: {', '.join(urls) or 'no server at the moment'}")


def say(message: str) -> None:
    print(f"{datetime.now().isoformat(timespec='seconds')} {message}", flush=True)


def load_judge(path: Path, overrides: Sequence[str] = ()) -> tuple[LlmJudgeSettings, JudgeServerSettings]:
    """The judge and its server. ConfigError if the judge is no language model."""
    document = compose([path])
    own = {key: value for key, value in document.items.items() if key in JudgeFile.model_fields}
    wanted = apply_overrides(Mapping(own, {key: document.keys[key] for key in own}, document.origin), overrides)
    config = bind(JudgeFile, wanted)
    if not isinstance(config.rubrics.judge, LlmJudgeSettings):
        raise ConfigError(f"{path}: rubrics.judge has type {config.rubrics.judge.type!r}; only `llm` needs a server")
    return config.rubrics.judge, config.judge_server


def main() -> None:
    parser = stage_parser("serve_judge", __doc__)
    parser.add_argument("--endpoint", type=Path, help="file to write (default: the judge's `endpoint`)")
    parser.add_argument("--logs", type=Path, help="folder of the servers' logs (default: beside the endpoint file)")
    args = parser.parse_args()
    judge, server = load_judge(args.config, args.set)
    endpoint = args.endpoint or judge.endpoint
    if endpoint is None or is_url(str(endpoint)):
        raise ConfigError(f"{args.config}: give --endpoint FILE, or a file as rubrics.judge.endpoint")
    if args.dry_run:
        print(dump(JudgeFile(rubrics=RubricSettings(judge=judge), judge_server=server)))
        for devices in slices(server, os.environ):
            shown = f"CUDA_VISIBLE_DEVICES={','.join(devices)} " if devices else ""
            print(shown + shlex.join(command(judge, server, server.first_port)))
        return
    path = Path(endpoint)
    logs = args.logs or path.with_name(f"{path.stem}.logs")
    try:
        ended_by = JudgeServer(judge, server, path, logs).serve()
    except StartFailed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    say(f"ended by {signal.Signals(ended_by).name}")
    sys.exit(STOPPED if ended_by == signal.SIGUSR2 else 0)


if __name__ == "__main__":
    run_stage(main)
