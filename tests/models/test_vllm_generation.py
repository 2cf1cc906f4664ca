"""Generation by a real vLLM: what it samples and reports is the policy's own distribution. Slow: `make test-vllm`.

One server of the nano policy serves most tests, one of SmolLM2-135M the comparison of log-probabilities, both in
float32 on a CPU. The tests of a module share its server and its weights, so that each says which version it expects.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from rised.models.engine_settings import VllmEngineSettings
from rised.models.loading import load_policy
from rised.models.protocols import Answer, GenerationRequest
from rised.models.rendering import ChatRendering
from rised.models.settings import ModelSettings
from rised.models.vllm_engine import VllmEngine
from rised.models.writing import WritingRequest, write

pytestmark = pytest.mark.vllm

ENVIRONMENT = ".venv-vllm"
SERVER = {
    "type": "vllm",
    "use_gpus": False,
    "arguments": ["--enforce-eager"],
    "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"},
    "start_timeout_s": 900,
}
"""As little as possible is compiled: that takes minutes, and these models run for seconds."""


@pytest.fixture(scope="module")
def interpreter(repository: Path) -> str:
    if not (repository / ENVIRONMENT / ".ready").is_file():
        pytest.skip("vLLM is not set up here: make vllm")
    return str(repository / ENVIRONMENT / "bin" / "python")


@pytest.fixture(scope="module")
def policy(repository: Path) -> tuple[PreTrainedModel, ChatRendering]:
    torch.set_num_threads(1)
    model, tokenizer = load_policy(ModelSettings(path=str(repository / "data" / "nano_policy")))
    return model, ChatRendering(tokenizer)


@pytest.fixture(scope="module")
def engine(interpreter: str, policy: tuple[PreTrainedModel, ChatRendering]) -> Iterator[VllmEngine]:
    model, rendering = policy
    settings = VllmEngineSettings(**SERVER, python=interpreter, max_model_len=1024)
    started = time.monotonic()
    with VllmEngine(settings, model, rendering.end_token_id, torch.float32, 0) as opened:
        opened.submit(GenerationRequest([5, 6], 1, seed=0)).result()
        print(f"\nthe nano policy is served after {time.monotonic() - started:.0f} s")
        yield opened


def prompt(rendering: ChatRendering, text: str = "go to shelf 1") -> list[int]:
    return rendering.start("You are in a room.", text)


def ask(engine: VllmEngine, requests: Sequence[GenerationRequest]) -> list[Answer]:
    return [future.result(600) for future in [engine.submit(request) for request in requests]]


@torch.no_grad()
def distribution(model: PreTrainedModel, ids: Sequence[int], temperature: float) -> torch.Tensor:
    """log-probabilities [T, V] of what follows each position."""
    return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float() / (temperature or 1.0), dim=-1)


def largest_difference(model: PreTrainedModel, answers: Sequence[Answer], temperature: float) -> float:
    """Of the reported log-probabilities from the model's own at that temperature."""
    worst = 0.0
    for answer in answers:
        start, reply = len(answer.prompt_ids), answer.reply
        logprobs_TV = distribution(model, [*answer.prompt_ids, *reply.token_ids], temperature)
        own = [float(logprobs_TV[start - 1 + place, token]) for place, token in enumerate(reply.token_ids)]
        worst = max(worst, max(abs(a - b) for a, b in zip(own, reply.logprobs, strict=True)))
    return worst


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_the_trainers_at_the_sampling_temperature(
    engine: VllmEngine, policy: tuple[PreTrainedModel, ChatRendering], temperature: float
) -> None:
    """At temperature 0 those at 1, as the transformers engine reports them."""
    model, rendering = policy
    requests = [
        GenerationRequest(prompt(rendering, f"shelf {n}"), 48, seed=n, temperature=temperature) for n in range(8)
    ]
    answers = ask(engine, requests)
    difference = largest_difference(model, answers, temperature)
    print(f"\ntemperature {temperature}: at most {difference:.1e} apart")
    assert difference < 1e-3
    assert [answer.prompt_ids for answer in answers] == [request.token_ids for request in requests]
    assert any(answer.reply.ended for answer in answers)
    for answer in answers:
        assert answer.reply.ended == (answer.reply.token_ids[-1] == rendering.end_token_id)
        assert answer.reply.ended or len(answer.reply.token_ids) == 48
        assert answer.reply.weight_version == 0


def test_equal_seeds_give_equal_tokens_alone_and_in_company(
    engine: VllmEngine, policy: tuple[PreTrainedModel, ChatRendering]
) -> None:
    requests = [GenerationRequest(prompt(policy[1]), 40, seed=2**62 + n) for n in range(12)]
    together = ask(engine, requests)
    alone = [ask(engine, [request])[0] for request in requests]
    assert [a.reply.token_ids for a in alone] == [a.reply.token_ids for a in together]
    assert len({tuple(a.reply.token_ids) for a in together}) > 6


def test_tokens_are_drawn_from_the_whole_distribution(
    engine: VllmEngine, policy: tuple[PreTrainedModel, ChatRendering]
) -> None:
    """Over 600 tokens where the model is unsure: the mean log-probability is minus the entropy, and the share of tokens
    outside of the likeliest 50 (a usual top-k) is what they hold."""
    model = policy[0]
    ids, temperature, count = [5, 6, 7], 1.5, 600
    found = ask(engine, [GenerationRequest(ids, 1, seed=n, temperature=temperature) for n in range(count)])
    logprobs_V = distribution(model, ids, temperature)[-1].double()
    probabilities_V = logprobs_V.exp()
    entropy = float(-(probabilities_V * logprobs_V).sum())
    deviation = float(((probabilities_V * (logprobs_V + entropy) ** 2).sum()).sqrt())
    mean = float(np.mean([answer.reply.logprobs[0] for answer in found]))
    assert abs(mean + entropy) < 4 * deviation / count**0.5
    likely = set(logprobs_V.topk(50).indices.tolist())
    outside = float(probabilities_V.sum() - sum(probabilities_V[token] for token in likely))
    share = float(np.mean([answer.reply.token_ids[0] not in likely for answer in found]))
    assert outside > 0.1 and abs(share - outside) < 4 * (outside * (1 - outside) / count) ** 0.5


def test_the_next_turn_computes_only_what_is_new(
    engine: VllmEngine, policy: tuple[PreTrainedModel, ChatRendering]
) -> None:
    """A block of the cache holds some tens of tokens: what fills none is computed again."""
    rendering = policy[1]
    ids = prompt(rendering, "shelf 1 " * 150)
    before = engine.tokens_fed
    (first,) = ask(engine, [GenerationRequest(ids, 8, seed=1)])
    fed_first, before = engine.tokens_fed - before, engine.tokens_fed
    following = [*ids, *first.reply.token_ids, *rendering.extend("you see a shelf")]
    ask(engine, [GenerationRequest(following, 8, seed=2)])
    fed_second = engine.tokens_fed - before
    print(f"\n{len(ids)} tokens, {fed_first} computed; then {len(following)}, {fed_second} computed")
    assert fed_first > 300 and fed_second < fed_first / 2


def test_many_long_prompts_at_once_are_all_answered(
    engine: VllmEngine, policy: tuple[PreTrainedModel, ChatRendering]
) -> None:
    """More of them than a batch takes: by default vLLM computes prompts in parts then, and on a CPU that ends it."""
    requests = [GenerationRequest([5 + n] * 700, 4, seed=n) for n in range(48)]
    answers = ask(engine, requests)
    assert [answer.prompt_ids[0] for answer in answers] == [5 + n for n in range(48)] and engine.restarts == 0
    assert largest_difference(policy[0], answers[::8], 1.0) < 1e-3


def test_texts_outside_of_episodes_are_written_too(
    engine: VllmEngine, policy: tuple[PreTrainedModel, ChatRendering]
) -> None:
    request = WritingRequest("You write.", "the shelf", (11, 12, 13), max_new_tokens=16, temperature=0.7, top_p=0.9)
    found = write(engine, policy[1], request)
    assert found == write(engine, policy[1], request) and len({one.text for one in found}) > 1
    assert not write(engine, policy[1], WritingRequest("", "x" * 9000, (1,), 512, 1.0))[0].fits


def test_new_weights_change_what_is_sampled_and_its_version_and_no_reply_mixes_two(
    engine: VllmEngine, policy: tuple[PreTrainedModel, ChatRendering]
) -> None:
    """Replies are in flight while the weights change; each is wholly of the version that it names."""
    model, rendering = policy
    old, new = clone(model), clone(model, shift=0.03)
    ids = prompt(rendering)
    before = ask(engine, [GenerationRequest(ids, 40, seed=n) for n in range(8)])
    running = [engine.submit(GenerationRequest([5 + n, 6, 7], 400, seed=n)) for n in range(8)]
    time.sleep(0.5)
    started = time.monotonic()
    engine.load_weights(new, 1)
    print(f"\nan update took {time.monotonic() - started:.2f} s, replies in flight included")
    later = [engine.submit(GenerationRequest([5 + n, 6, 7], 40, seed=n)) for n in range(8)]
    answers = [future.result(600) for future in [*running, *later]]
    assert {answer.reply.weight_version for answer in answers[8:]} == {1}
    for answer in answers:
        version = answer.reply.weight_version
        own, other = ((old, new), (new, old))[version or 0]
        assert largest_difference(own, [answer], 1.0) < 1e-3
        assert largest_difference(other, [answer], 1.0) > 1e-3
    after = ask(engine, [GenerationRequest(ids, 40, seed=n) for n in range(8)])
    assert largest_difference(new, after, 1.0) < 1e-3, "nothing of the old weights is left in the prefix cache"
    assert [a.reply.token_ids for a in after] != [a.reply.token_ids for a in before]
    engine.load_weights(old, 2)
    again = ask(engine, [GenerationRequest(ids, 40, seed=n) for n in range(8)])
    assert [a.reply.token_ids for a in again] == [a.reply.token_ids for a in before]
    assert {a.reply.weight_version for a in again} == {2}


def test_a_killed_server_comes_back_with_the_current_weights(
    engine: VllmEngine, policy: tuple[PreTrainedModel, ChatRendering]
) -> None:
    model, rendering = policy
    new = clone(model, shift=0.05)
    engine.load_weights(new, 3)
    requests = [GenerationRequest([5 + n, 6, 7], 60, seed=n) for n in range(4)]
    before = ask(engine, requests)
    running = [engine.submit(GenerationRequest([5 + n, 6, 7], 600, seed=n)) for n in range(8)]
    time.sleep(0.5)
    started = time.monotonic()
    os.killpg(engine.server_pids[0] or 0, signal.SIGKILL)
    answers = [future.result(1200) for future in running]
    print(f"\nreplies came {time.monotonic() - started:.0f} s after the server was killed")
    assert engine.restarts == 1 and {answer.reply.weight_version for answer in answers} == {3}
    assert largest_difference(new, answers, 1.0) < 1e-3
    assert [a.reply.token_ids for a in ask(engine, requests)] == [a.reply.token_ids for a in before]


def test_log_probabilities_of_a_published_model_are_the_trainers(interpreter: str, repository: Path) -> None:
    torch.set_num_threads(1)
    model, tokenizer = load_policy(ModelSettings(path=str(repository / ENVIRONMENT / "smollm2")))
    rendering = ChatRendering(tokenizer)
    server: dict[str, Any] = SERVER | {"environment": SERVER["environment"] | {"VLLM_CPU_KVCACHE_SPACE": "2"}}  # type: ignore[operator]
    settings = VllmEngineSettings(**server, python=interpreter, max_model_len=1024)
    with VllmEngine(settings, model, rendering.end_token_id, torch.float32, 0) as opened:
        for temperature in (1.0, 0.7):
            ids = rendering.start("You are a helpful assistant.", "Which shelf holds the apple?")
            answers = ask(opened, [GenerationRequest(ids, 24, seed=n, temperature=temperature) for n in range(4)])
            difference = largest_difference(model, answers, temperature)
            print(f"\nSmolLM2-135M, temperature {temperature}: at most {difference:.1e} apart")
            assert difference < 1e-3 and len({tuple(answer.reply.token_ids) for answer in answers}) > 1


def test_the_transfer_by_nccl_speaks_this_vllms_interface(interpreter: str, repository: Path) -> None:
    """No transfer is made: that takes GPUs. Names, routes and errors are held against vLLM's own code."""
    program = Path(__file__).with_name("nccl_contract.py")
    done = subprocess.run(
        [interpreter, str(program)],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@torch.no_grad()
def clone(model: PreTrainedModel, shift: float = 0.0) -> PreTrainedModel:
    """A copy whose weights are moved by ``shift`` times noise."""
    copy = type(model)(model.config).eval()
    copy.load_state_dict(model.state_dict())
    torch.manual_seed(0)
    for parameter in copy.parameters():
        parameter += shift * torch.randn_like(parameter)
    return copy
