"""vLLM servers that die, hang or answer nonsense, played by scripted processes. Right replies: test_vllm_generation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_vllm_server import END, Script, command
from tiny_models import qwen2

from rised.config import ConfigError
from rised.models.devices import own_index
from rised.models.engine_settings import VllmEngineSettings
from rised.models.errors import ModelError
from rised.models.handover import KEPT
from rised.models.protocols import GenerationRequest
from rised.models.vllm_devices import own_devices, server_devices, vllm_version
from rised.models.vllm_engine import VllmEngine
from rised.models.vllm_replica import FOREIGN
from rised.models.vllm_replica import command as server_command

MODEL = qwen2()
REQUEST = GenerationRequest([5, 6, 7], 6, seed=3)
EXPECTED = [5 + (3 + place) % 50 for place in range(5)] + [END]


def engine(folder: Path, *options: str, **settings: Any) -> VllmEngine:
    usual = {
        "command": command(*options),
        "use_gpus": False,
        "health_every_s": 0.2,
        "health_timeout_s": 60,
        "start_timeout_s": 120,
        "stop_grace_s": 2,
        "weights_folder": str(folder / "weights"),
    }
    return VllmEngine(VllmEngineSettings(type="vllm", **(usual | settings)), MODEL, END, torch.float32, 4)


def scripts(opened: VllmEngine) -> list[Script]:
    """Handles on the servers, once they are there."""
    replicas = opened._replicas
    eventually(lambda: all(replica.healthy for replica in replicas))
    return [Script(replica.socket) for replica in replicas]


def eventually(holds: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def group_lives(pid: int | None) -> bool:
    try:
        os.killpg(pid or 0, 0)
    except ProcessLookupError:
        return False
    return True


# ---- requests


def test_a_request_says_all_that_the_reply_follows_from_and_the_reply_its_version(tmp_path: Path) -> None:
    with engine(tmp_path) as opened:
        answer = opened.submit(REQUEST).result(120)
        (asked,) = scripts(opened)[0].state["requests"]
    assert answer.prompt_ids == [5, 6, 7]
    assert (answer.reply.token_ids, answer.reply.ended, answer.reply.weight_version) == (EXPECTED, True, 4)
    assert asked["token_ids"] == [5, 6, 7]
    wanted = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 3, "max_tokens": 6, "stop_token_ids": [END]}
    assert {key: asked["sampling_params"][key] for key in wanted} == wanted and asked["sampling_params"]["ignore_eos"]
    assert opened.tokens_generated == 6 and opened.tokens_fed == 3 + 5


@pytest.mark.parametrize(
    "behaviour",
    [
        {"do": "text", "text": "<html>"},
        {"do": "text", "text": "[]"},
        {"do": "status", "code": 500},
        {"do": "choice", "change": {"finish_reason": "abort"}},
        {"do": "choice", "change": {"token_ids": [7, 8]}},
        {"do": "choice", "change": {"token_ids": []}},
        {"do": "choice", "change": {"token_ids": [7], "logprobs": {"content": [{"token_id": 7, "logprob": -1.0}]}}},
        {"do": "choice", "change": {"weight_versions": [{"version": "default"}]}},
        {"do": "choice", "change": {"logprobs": None}},
        {"do": "sleep", "seconds": 60},
        {"do": "die"},
    ],
    ids=lambda behaviour: "-".join(str(value)[:20] for value in behaviour.values()),
)
def test_a_wrong_a_late_or_no_answer_is_asked_for_again(tmp_path: Path, behaviour: dict[str, Any]) -> None:
    with engine(tmp_path, request_timeout_s=2.0 if behaviour["do"] == "sleep" else 60.0) as opened:
        scripts(opened)[0].set(behaviour)
        answer = opened.submit(REQUEST).result(120)
        assert answer.reply.token_ids == EXPECTED and answer.reply.weight_version == 4
        assert opened.restarts == (behaviour["do"] == "die")


def test_answers_that_stay_wrong_end_with_what_was_wrong(tmp_path: Path) -> None:
    with engine(tmp_path, request_attempts=2) as opened:
        scripts(opened)[0].set(*[{"do": "choice", "change": {"finish_reason": "abort"}}] * 2)
        with pytest.raises(ModelError, match="no usable reply at 2 attempts.*ended by 'abort'"):
            opened.submit(REQUEST).result(120)


def test_a_reply_of_two_versions_and_a_refused_request_end_at_once(tmp_path: Path) -> None:
    spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 6}]
    with engine(tmp_path) as opened:
        (script,) = scripts(opened)
        script.set(
            {"do": "choice", "change": {"weight_versions": spans}}, {"do": "status", "code": 400, "message": "too long"}
        )
        with pytest.raises(ModelError, match="several versions of the weights: 3, 4"):
            opened.submit(REQUEST).result(120)
        with pytest.raises(ModelError, match="refused /inference/v1/generate .400.: too long"):
            opened.submit(REQUEST).result(120)


@pytest.mark.parametrize("request_", [([], 4), ([5, 420], 4), ([-1], 4), ([5], 0), ([5] * 2047, 4)])
def test_what_would_end_a_real_server_is_not_sent(tmp_path: Path, request_: tuple[list[int], int]) -> None:
    with engine(tmp_path) as opened, pytest.raises(ValueError):
        opened.submit(GenerationRequest(*request_, seed=0))


def test_a_cancelled_request_is_given_up_and_others_go_on(tmp_path: Path) -> None:
    with engine(tmp_path) as opened:
        (script,) = scripts(opened)
        script.set({"do": "sleep", "seconds": 2})
        slow = opened.submit(REQUEST)
        eventually(lambda: bool(script.state["requests"]))
        assert slow.cancel() and opened.submit(REQUEST).result(120).reply.token_ids == EXPECTED
        assert opened.restarts == 0


# ---- servers


def test_requests_of_one_name_go_to_one_server_and_names_are_shared_out(tmp_path: Path) -> None:
    with engine(tmp_path, replicas=2) as opened:
        handles = scripts(opened)
        for handle in handles:
            handle.set(*[{"do": "sleep", "seconds": 0.3}] * 8)
        asked = [
            opened.submit(GenerationRequest([10 + group], 4, seed=1, affinity=f"g{group}"))
            for _ in range(4)
            for group in range(4)
        ]
        for future in asked:
            future.result(120)
        seen = [sorted(request["token_ids"][0] for request in handle.state["requests"]) for handle in handles]
    assert sorted(len(ids) for ids in seen) == [8, 8]
    assert all(len(set(ids)) == 2 for ids in seen)


def test_a_killed_server_comes_back_with_the_current_weights_and_its_requests_are_answered(tmp_path: Path) -> None:
    with engine(tmp_path, replicas=2) as opened:
        handles = scripts(opened)
        opened.load_weights(MODEL, 5)
        current = handles[0].state["weights"]
        for handle in handles:
            handle.set(*[{"do": "sleep", "seconds": 1}] * 4)
        asked = [opened.submit(GenerationRequest([5], 4, seed=1, affinity=str(n))) for n in range(8)]
        eventually(lambda: all(handle.state["requests"] for handle in handles))
        os.killpg(opened.server_pids[0] or 0, signal.SIGKILL)
        assert {future.result(120).reply.weight_version for future in asked} == {5}
        eventually(lambda: all(replica.healthy for replica in opened._replicas))
        state = Script(opened._replicas[0].socket).state
        assert opened.restarts == 1 and (state["weights"], state["version"]) == (current, "5")


def test_what_slurm_tells_every_process_of_a_job_does_not_end_a_server(tmp_path: Path) -> None:
    with engine(tmp_path, stop_grace_s=60) as opened:
        (script,) = scripts(opened)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            os.killpg(opened.server_pids[0] or 0, number)
        time.sleep(0.5)
        assert opened.submit(REQUEST).result(120).reply.token_ids == EXPECTED
        assert opened.restarts == 0 and script.state["pid"]
        process = opened._replicas[0]._process
    assert process is not None and process.returncode != -signal.SIGKILL, "it ends when it is asked to"


def test_a_server_that_answers_no_health_check_is_replaced(tmp_path: Path) -> None:
    """A request that it was asked meanwhile is answered by the next one."""
    deaf = tmp_path / "deaf"
    with engine(tmp_path, "--deaf", str(deaf), health_timeout_s=1) as opened:
        (script,) = scripts(opened)
        before = script.state["pid"]
        script.set({"do": "sleep", "seconds": 60})
        hanging = opened.submit(REQUEST)
        eventually(lambda: bool(script.state["requests"]))
        deaf.touch()
        eventually(lambda: opened.restarts == 1)
        deaf.unlink()
        assert scripts(opened)[0].state["pid"] != before
        assert hanging.result(120).reply.token_ids == EXPECTED
        assert opened.submit(REQUEST).result(120).reply.token_ids == EXPECTED


def test_a_server_that_cannot_start_fails_the_requests_with_its_last_words(tmp_path: Path) -> None:
    doomed = tmp_path / "doomed"
    doomed.touch()
    with engine(tmp_path, "--doomed", str(doomed)) as opened:
        with pytest.raises(ModelError, match="ended before it was ready.*\n.*doomed: the scripted server ends"):
            opened.submit(REQUEST).result(120)


def test_restarts_are_bounded_and_then_requests_fail(tmp_path: Path) -> None:
    with engine(tmp_path, max_restarts=0) as opened:
        scripts(opened)[0].set({"do": "die"})
        with pytest.raises(ModelError, match="vLLM server 0 died"):
            opened.submit(REQUEST).result(120)


def test_nothing_of_a_server_outlives_the_block_or_a_killed_process(tmp_path: Path, repository: Path) -> None:
    with engine(tmp_path) as opened:
        scripts(opened)
        pid = opened.server_pids[0]
    assert not group_lives(pid) and list((tmp_path / "weights").iterdir()) == []
    program = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        import test_vllm_faults as here
        with here.engine(Path({str(tmp_path)!r})) as opened:
            here.scripts(opened)
            print(opened.server_pids[0], opened._replicas[0].socket, flush=True)
            time.sleep(60)
    """
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=repository, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    number, socket = started.stdout.readline().split()
    group, sockets = int(number), Path(socket).parent
    assert group_lives(group) and sockets.is_dir() and list((tmp_path / "weights").iterdir())
    started.kill()
    started.wait()
    eventually(lambda: not group_lives(group))
    assert not sockets.exists() and list((tmp_path / "weights").iterdir()) == []


# ---- weights


def test_an_update_waits_for_replies_reloads_forgets_the_cache_names_the_version_and_goes_on(tmp_path: Path) -> None:
    with engine(tmp_path) as opened:
        (script,) = scripts(opened)
        before = len(script.state["calls"])
        opened.load_weights(MODEL, 5)
        calls = script.state["calls"][before:]
        steps = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
        assert calls == steps
        assert opened.submit(REQUEST).result(120).reply.weight_version == 5
        for version in range(6, 10):
            opened.load_weights(MODEL, version)
        folder = Path(script.state["weights"]).parent
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
        assert names == ["000004-version-000008", "000005-version-000009"] and len(names) == KEPT


def test_no_request_is_lost_or_sent_while_weights_change(tmp_path: Path) -> None:
    """vLLM refuses what comes while it is paused. One request is on its way then, others are asked for meanwhile."""
    with engine(tmp_path, "--slow", "1", request_attempts=1) as opened, ThreadPoolExecutor(1) as thread:
        (script,) = scripts(opened)
        script.set({"do": "wait for a pause"})
        on_its_way = opened.submit(REQUEST)
        eventually(lambda: bool(script.state["requests"]))
        change = thread.submit(opened.load_weights, MODEL, 5)
        eventually(lambda: script.state["refused"] == 1)
        asked = [opened.submit(REQUEST) for _ in range(4)]
        time.sleep(0.3)
        assert not change.done() and not any(future.done() for future in asked)
        change.result(120)
        answers = [future.result(120) for future in (on_its_way, *asked)]
        assert {answer.reply.weight_version for answer in answers} == {5}
        assert script.state["refused"] == 1 and opened.restarts == 0


def test_a_server_that_is_paused_for_no_reason_of_ours_is_a_fault(tmp_path: Path) -> None:
    with engine(tmp_path, request_attempts=2) as opened:
        scripts(opened)[0].set(*[{"do": "status", "code": 503, "message": "overloaded"}] * 2)
        with pytest.raises(ModelError, match="no usable reply at 2 attempts.*503: overloaded"):
            opened.submit(REQUEST).result(120)


def test_an_update_that_cannot_be_written_keeps_the_old_weights_in_service(tmp_path: Path) -> None:
    class Broken:
        config = MODEL.config

        def state_dict(self) -> dict[str, torch.Tensor]:
            raise OSError(28, "No space left on device")

    with engine(tmp_path) as opened:
        scripts(opened)
        with pytest.raises(ModelError, match="No space left.*engine.weights_folder"):
            opened.load_weights(Broken(), 5)  # type: ignore[arg-type]
        assert opened.submit(REQUEST).result(120).reply.weight_version == 4
        folder = opened._folder
        assert [path.name for path in folder.iterdir() if path.is_dir()] == ["000000-version-000004"]


# ---- what is refused, and what would be run


def test_without_vllm_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine.python: there is no interpreter nowhere.*make vllm"):
        vllm_version(VllmEngineSettings(type="vllm", python="nowhere"))
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(ConfigError, match="has no vLLM.*engine.type: transformers"):
        vllm_version(VllmEngineSettings(type="vllm", python=str(bare)))


def test_the_command_sets_on_purpose_what_decides_the_numbers() -> None:
    settings = VllmEngineSettings(type="vllm", python="py", tensor_parallel=2, arguments=["--enforce-eager"])
    words = server_command(settings, Path("w"), Path("s"), "bfloat16", 512)
    found = dict(zip(words, words[1:], strict=False))
    assert words[:3] == ["py", "-m", "vllm.entrypoints.openai.api_server"] and "--tokens-only" in words
    assert (found["--model"], found["--uds"], found["--dtype"]) == ("w", "s", "bfloat16")
    assert (found["--max-model-len"], found["--tensor-parallel-size"]) == ("512", "2")
    assert (found["--logprobs-mode"], found["--generation-config"]) == ("processed_logprobs", "vllm")
    assert "RANK" in FOREIGN
    with pytest.raises(ModelError, match="engine.command: '{modle}'.*{weights}"):
        engine(Path("."), arguments=["{modle}"])


def test_servers_are_on_the_learners_side_of_a_node_that_names_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    second = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    settings = VllmEngineSettings(type="vllm", handover="nccl")
    assert own_index(6, second) == 3, "the learner's, which NCCL takes once"
    assert own_devices(second, 2) == ["3", "4", "5"] and server_devices(settings, second) == [["4"]]
    assert server_devices(settings, {}) == [["1"]]


def test_processes_of_a_node_share_its_gpus_out(tmp_path: Path) -> None:
    place = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert own_devices(place | {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 1) == ["6", "7"]
    assert own_devices(place | {"CUDA_VISIBLE_DEVICES": "3"}, 1) == ["3"]
    assert own_devices({"CUDA_VISIBLE_DEVICES": "4,5"}, 1) == ["4", "5"]
    assert own_devices(place, 2) == ["2", "3"] and own_devices({}, 2) == ["0", "1"]
    settings = VllmEngineSettings(type="vllm", handover="nccl", replicas=2)
    assert server_devices(settings, {"CUDA_VISIBLE_DEVICES": "4,5,6"}) == [["5"], ["6"]], "the first is the learner's"
    with pytest.raises(ModelError, match="engine: 1 replicas of 2 GPUs need 2.*engine.replicas"):
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        try:
            with engine(tmp_path, use_gpus=True, tensor_parallel=2):
                pass
        finally:
            del os.environ["CUDA_VISIBLE_DEVICES"]
