"""The stage that serves the judge, as a process with scripted server processes: its file is true, its end is clean."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML
from scripted_judge_server import ScriptedServer, command, free_port, wait_until
from stage_commands import assert_refused, in_process, in_subprocess

from rised.rubrics.judge_endpoint import read_endpoint
from rised.rubrics.settings import JudgeServerSettings, LlmJudgeSettings
from stages import judge_replica
from stages.attempts import STOPPED


def judge_file(folder: Path, *options: str, **server: Any) -> Path:
    """A judge file whose servers are scripted ones on loopback."""
    settings = {
        "command": command(*options),
        "bind": "127.0.0.1",
        "advertise": "127.0.0.1",
        "first_port": free_port(),
        "use_gpus": False,
        "start_timeout_s": 20,
        "health_every_s": 0.1,
        "health_timeout_s": 1,
        "stop_grace_s": 5,
    }
    document = {
        "rubrics": {"judge": {"type": "llm", "model": "test/judge", "endpoint": str(folder / "judge.json")}},
        "judge_server": settings | server,
    }
    path = folder / "judge.yaml"
    YAML(typ="safe").dump(document, path)
    return path


class Stage:
    """``python -m stages.serve_judge`` in the background. ``ignored``: a signal that its parent has it ignore."""

    def __init__(
        self, repository: Path, config: Path, ignored: signal.Signals | None = None, **environment: str
    ) -> None:
        self.endpoint = config.parent / "judge.json"
        self.log = config.parent / "stage.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stages.serve_judge", "--config", str(config)],
                cwd=repository,
                env=os.environ | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: _heed_all_but(ignored),
            )

    def urls(self) -> list[str]:
        found = read_endpoint(self.endpoint)
        return found.urls if found else []

    def await_urls(self, count: int) -> list[str]:
        def there() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return len(self.urls()) == count

        wait_until(there)
        return self.urls()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=120)


@pytest.fixture
def stage(repository: Path) -> Iterator[Callable[..., Stage]]:
    begun: list[Stage] = []

    def begin(config: Path, ignored: signal.Signals | None = None, **environment: str) -> Stage:
        begun.append(Stage(repository, config, ignored, **environment))
        return begun[-1]

    yield begin
    for one in begun:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGUSR2)
            try:
                one.process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()


def _heed_all_but(ignored: signal.Signals | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)


def state(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(url.removesuffix("/v1") + "/state", trust_env=False).json()
    return found


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_file_appears_when_all_are_ready_and_goes_with_every_server_at_the_end(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    unready = tmp_path / "unready"
    unready.touch()
    one = stage(judge_file(tmp_path, "--unready", str(unready), replicas=2), SLURM_JOB_ID="4711")
    wait_until(lambda: one.log.read_text().count("port") >= 2)
    time.sleep(0.3)
    assert not one.endpoint.exists()
    unready.unlink()
    urls = one.await_urls(2)
    written = json.loads(one.endpoint.read_text())
    assert set(written) == {"urls", "model", "job", "host", "started", "pid"}
    assert (written["model"], written["job"], written["host"]) == ("test/judge", "4711", socket.gethostname())
    pids = [state(url)["pid"] for url in urls]
    assert len(set(pids)) == 2 and all(lives(pid) for pid in pids)
    assert one.end(signal.SIGTERM) == 0
    assert not one.endpoint.exists() and not any(lives(pid) for pid in pids)


def test_a_replica_that_dies_leaves_the_file_is_restarted_and_put_back(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    unready = tmp_path / "unready"
    one = stage(judge_file(tmp_path, "--unready", str(unready), replicas=2, health_every_s=60))
    first, second = one.await_urls(2)
    before = state(first)["pid"]
    unready.touch()
    os.kill(before, signal.SIGKILL)
    assert one.await_urls(1) == [second]
    unready.unlink()
    back = one.await_urls(2)
    assert second in back and state(back[0])["pid"] != before
    assert "restart 1 of 5" in one.log.read_text()
    assert one.end(signal.SIGINT) == 0


def test_a_replica_that_hangs_is_replaced(stage: Callable[..., Stage], tmp_path: Path) -> None:
    one = stage(judge_file(tmp_path, health_timeout_s=0.3, unhealthy_checks=2, stop_grace_s=0.2))
    (url,) = one.await_urls(1)
    before = state(url)["pid"]
    os.kill(before, signal.SIGSTOP)
    wait_until(lambda: not lives(before))
    (url,) = one.await_urls(1)
    assert state(url)["pid"] != before
    assert "failed 2 health checks" in one.log.read_text()


def test_told_to_go_on_elsewhere_it_ends_with_the_code_of_a_stopped_stage(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    one = stage(judge_file(tmp_path))
    (url,) = one.await_urls(1)
    pid = state(url)["pid"]
    assert one.end(signal.SIGUSR2) == STOPPED
    assert not one.endpoint.exists() and not lives(pid)


def test_a_signal_that_a_launcher_has_it_ignore_stays_ignored_and_reaches_no_server(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    one = stage(judge_file(tmp_path), ignored=signal.SIGTERM)
    (url,) = one.await_urls(1)
    one.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert one.process.poll() is None and one.urls() == [url]
    assert one.end(signal.SIGUSR2) == STOPPED


def test_a_server_that_ends_before_it_is_ready_ends_the_stage_with_its_last_words(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    doomed = tmp_path / "doomed"
    doomed.touch()
    one = stage(judge_file(tmp_path, "--doomed", str(doomed), replicas=2))
    assert one.process.wait(timeout=120) == 1
    said = one.log.read_text()
    assert "ended before it was ready" in said and "CUDA out of memory: this server is doomed" in said
    assert not one.endpoint.exists() and "Traceback" not in said


def test_a_server_that_is_never_ready_ends_the_stage(stage: Callable[..., Stage], tmp_path: Path) -> None:
    unready = tmp_path / "unready"
    unready.touch()
    one = stage(judge_file(tmp_path, "--unready", str(unready), start_timeout_s=1.5))
    assert one.process.wait(timeout=120) == 1
    said = one.log.read_text()
    assert "not ready after 1.5 s" in said and "listening at" in said, "the end of the server's log"


def test_restarts_are_bounded(stage: Callable[..., Stage], tmp_path: Path) -> None:
    doomed = tmp_path / "doomed"
    one = stage(judge_file(tmp_path, "--doomed", str(doomed), max_restarts=1))
    (url,) = one.await_urls(1)
    doomed.touch()
    os.kill(state(url)["pid"], signal.SIGKILL)
    assert one.process.wait(timeout=120) == 1
    assert "stays out after 1 restarts" in one.log.read_text() and not one.endpoint.exists()


def test_servers_end_with_a_stage_that_is_killed(stage: Callable[..., Stage], tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs the parent-death signal of Linux")
    one = stage(judge_file(tmp_path))
    (url,) = one.await_urls(1)
    pid = state(url)["pid"]
    one.end(signal.SIGKILL)
    wait_until(lambda: not lives(pid))
    assert not lives(pid)


def test_the_file_of_a_later_server_is_left_alone(stage: Callable[..., Stage], tmp_path: Path) -> None:
    one = stage(judge_file(tmp_path))
    one.await_urls(1)
    later = json.loads(one.endpoint.read_text()) | {"pid": 1, "host": "elsewhere"}
    one.endpoint.write_text(json.dumps(later))
    assert one.end(signal.SIGTERM) == 0
    assert json.loads(one.endpoint.read_text())["host"] == "elsewhere"


def test_each_replica_gets_its_slice_of_the_gpus_and_a_port_of_its_own(
    stage: Callable[..., Stage], tmp_path: Path
) -> None:
    with ScriptedServer() as other:
        config = judge_file(tmp_path, replicas=2, tensor_parallel=2, use_gpus=True, first_port=other.port)
        one = stage(config, CUDA_VISIBLE_DEVICES="4,5,6,7", SLURM_JOB_ID="64")
        urls = one.await_urls(2)
        assert [state(url)["cuda"] for url in urls] == ["4,5", "6,7"]
        ports = [int(url.rsplit(":", 1)[1].removesuffix("/v1")) for url in urls]
        assert other.port < ports[0] < ports[1]
    jobs = [judge_replica.first_port(JudgeServerSettings(), {"SLURM_JOB_ID": job}) for job in ("64", "65", "65_1")]
    assert jobs == [8000, 8016, 8000 + 16 * (651 % 64)]


# ---- what is refused, and what would be run


def test_too_few_gpus_are_refused_before_anything_starts(repository: Path, tmp_path: Path) -> None:
    config = judge_file(tmp_path, replicas=2, tensor_parallel=4, use_gpus=True)
    arguments = ["-m", "stages.serve_judge", "--config", config]
    outcome = in_subprocess(repository, arguments, CUDA_VISIBLE_DEVICES="0,1,2")
    assert_refused(outcome, "2 replicas of 4 GPUs need 8", "'0,1,2'", "judge_server.replicas")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rubrics.judge.endpoint=http://127.0.0.1:8000/v1"], ["--endpoint FILE"]),
        (["judge_server.arguments=['{modle}']"], ["judge_server.command", "'{modle}'", "{model}"]),
        (["rubrics.judge={type: rules}"], ["rubrics.judge has type 'rules'", "only `llm`"]),
        (["judge_server.replica=2"], ["judge_server.replica", "did you mean 'replicas'?"]),
        (["judge_server.bind=no.such.host.invalid"], ["judge_server.bind", "no address of this host"]),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_key(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
    words: list[str],
) -> None:
    run = in_process(monkeypatch, capsys)
    options = [word for override in overrides for word in ("--set", override)]
    assert_refused(run("serve_judge", "--config", judge_file(tmp_path), *options), *words)


def test_a_dry_run_shows_settings_and_commands_and_starts_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(repository)
    outcome = in_process(monkeypatch, capsys)("serve_judge", "--config", "configs/judges/qwen3_32b.yaml", "--dry-run")
    assert outcome.code == 0
    shown = [line for line in outcome.out.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES=")]
    assert [line.split()[0] for line in shown] == ["CUDA_VISIBLE_DEVICES=0,1,2,3", "CUDA_VISIBLE_DEVICES=4,5,6,7"]
    assert all("--model Qwen/Qwen3-32B" in line and "--tensor-parallel-size 4" in line for line in shown)


def test_local_weights_are_served_under_the_judges_name() -> None:
    judge = LlmJudgeSettings(type="llm", model="Qwen/Qwen3-8B", revision="abc")
    words = judge_replica.command(
        judge, JudgeServerSettings(weights="somewhere/qwen", arguments=["{{x}}"], python="py"), 8001
    )
    found = dict(zip(words, words[1:], strict=False))
    assert (found["--model"], found["--served-model-name"]) == ("somewhere/qwen", "Qwen/Qwen3-8B")
    assert (found["--revision"], found["--port"], words[-1]) == ("abc", "8001", "{x}")
    assert words[0] == "py"
