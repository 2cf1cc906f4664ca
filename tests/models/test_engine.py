"""Generation with one cache over all turns gives what a full forward pass gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import llama, qwen2
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rised.models.engine import GenerationSession, TransformersEngine
from rised.models.errors import ModelError
from rised.models.randomness import episode_seed, episode_uniforms
from rised.models.sampling import sample

END = 1


def random_ids(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(5, 420, size=count)]


def full_logprobs(model: PreTrainedModel, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    return torch.log_softmax(logits / temperature, dim=-1)


def play(session: GenerationSession, rows: int, turns: int, seed: int) -> dict[int, list[tuple[int, float]]]:
    """Turns of random length; rows drop out on the way. Returns (place, log-probability) of each row's samples."""
    rng = np.random.default_rng(seed)
    live = list(range(rows))
    sampled: dict[int, list[tuple[int, float]]] = {row: [] for row in live}
    for _ in range(turns):
        replies = session.generate(
            live,
            [random_ids(rng, int(rng.integers(1, 30))) for _ in live],
            [int(rng.integers(1, 12)) for _ in live],
            [rng.random(12) for _ in live],
        )
        for row, reply in zip(live, replies, strict=True):
            ids = session.token_ids(row)
            start = len(ids) - len(reply.token_ids)
            assert ids[start:] == reply.token_ids
            sampled[row] += [(start + offset, logprob) for offset, logprob in enumerate(reply.logprobs)]
        live = [row for row in live if rng.random() < 0.8] or live[:1]
        rng.shuffle(live)
    return sampled


@pytest.mark.parametrize("model", [qwen2(), llama()], ids=["qwen2", "llama-grouped-queries"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_cached_turns_give_the_log_probabilities_of_a_full_pass(model: PreTrainedModel, temperature: float) -> None:
    session = TransformersEngine(model, END).session(11, temperature, capacity=16)
    for row, samples in play(session, 11, 5, seed=1).items():
        ids = session.token_ids(row)
        expected = full_logprobs(model, ids, temperature)
        want = torch.stack([expected[place - 1, ids[place]] for place, _ in samples])
        got = torch.tensor([logprob for _, logprob in samples])
        assert torch.allclose(got, want, atol=1e-4), (got - want).abs().max()


@pytest.mark.parametrize("model", [qwen2(3), llama(3)], ids=["qwen2", "llama"])
def test_greedy_equals_transformers_generate(model: PreTrainedModel) -> None:
    rng = np.random.default_rng(5)
    prompts = [random_ids(rng, length) for length in (3, 17, 8, 8)]
    prompts.append(prompts[2])
    session = TransformersEngine(model, END).session(len(prompts), temperature=0.0)
    replies = session.generate(range(5), prompts, [20] * 5, [np.zeros(0)] * 5)
    for prompt, reply in zip(prompts, replies, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=END, pad_token_id=0
        )[0, len(prompt) :].tolist()
        assert reply.token_ids == expected
        assert reply.ended == (expected[-1] == END)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9))
def test_a_row_alone_gives_what_it_gives_in_a_batch(seed: int, rows: int) -> None:
    engine = TransformersEngine(qwen2(), END)
    rng = np.random.default_rng(seed)
    prompts = [random_ids(rng, int(rng.integers(1, 40))) for _ in range(rows)]
    more = [random_ids(rng, int(rng.integers(1, 10))) for _ in range(rows)]
    uniforms = [rng.random(20) for _ in range(rows)]
    limits = [int(rng.integers(1, 10)) for _ in range(rows)]
    together = engine.session(rows)
    first = together.generate(range(rows), prompts, limits, uniforms)
    second = together.generate(range(rows), more, limits, [u[10:] for u in uniforms])
    for row in range(rows):
        alone = engine.session(1)
        one = alone.generate([0], [prompts[row]], [limits[row]], [uniforms[row]])[0]
        two = alone.generate([0], [more[row]], [limits[row]], [uniforms[row][10:]])[0]
        assert (one.token_ids, two.token_ids) == (first[row].token_ids, second[row].token_ids)
        assert np.allclose(one.logprobs + two.logprobs, first[row].logprobs + second[row].logprobs, atol=1e-4)


def test_identical_first_prompts_are_computed_once() -> None:
    engine = TransformersEngine(qwen2(), END)
    prompt = random_ids(np.random.default_rng(0), 50)
    engine.session(8).generate(range(8), [prompt] * 8, [1] * 8, [np.full(1, 0.5)] * 8)
    assert engine.tokens_fed == 50


def test_a_reply_stops_at_the_end_token_and_at_its_own_limit() -> None:
    model = qwen2()
    with torch.no_grad():
        model.get_input_embeddings().weight[END] *= 6
    session = TransformersEngine(model, END).session(40)
    rng = np.random.default_rng(2)
    replies = session.generate(
        range(40), [random_ids(rng, 5) for _ in range(40)], [4 + row % 3 for row in range(40)], [rng.random(6)] * 40
    )
    assert {reply.ended for reply in replies} == {True, False}
    for row, reply in enumerate(replies):
        assert END not in reply.token_ids[:-1]
        assert reply.ended == (reply.token_ids[-1] == END)
        assert len(reply.token_ids) == len(reply.logprobs) == 4 + row % 3 or reply.ended


def test_a_model_that_ignores_the_cache_argument_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = qwen2()
    session = TransformersEngine(model, END).session(2)
    forward = type(model.base_model).forward
    monkeypatch.setattr(
        type(model.base_model), "forward", lambda self, past_key_values=None, **more: forward(self, **more)
    )
    with pytest.raises(ModelError, match="would have no memory"):
        session.generate([0, 1], [[5], [6]], [2, 2], [np.zeros(2)] * 2)


def test_a_bfloat16_copy_takes_over_new_weights() -> None:
    model, other = qwen2(1), qwen2(2)
    engine = TransformersEngine(model, END, dtype=torch.bfloat16)
    assert engine.copies_weights and model.dtype == torch.float32
    prompt, uniforms = [random_ids(np.random.default_rng(0), 9)], [np.random.default_rng(1).random(8)]
    before = engine.session(1).generate([0], prompt, [8], uniforms)
    engine.load_weights(other)
    after = engine.session(1).generate([0], prompt, [8], uniforms)
    fresh = TransformersEngine(other, END, dtype=torch.bfloat16).session(1).generate([0], prompt, [8], uniforms)
    assert before != after
    assert after == fresh


def test_sliding_window_models_are_refused() -> None:
    config = Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=8, max_window_layers=0,
    )  # fmt: skip
    with pytest.raises(ModelError, match="full attention"):
        TransformersEngine(Qwen2ForCausalLM(config), END)


def test_an_episode_longer_than_the_models_positions_is_an_error() -> None:
    session = TransformersEngine(qwen2(), END).session(1)
    with pytest.raises(ModelError, match="positions"):
        session.generate([0], [[5] * 1020], [20], [np.random.default_rng(0).random(20)])


def test_sampling_follows_the_distribution_and_never_picks_the_impossible() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0, -torch.inf]]).repeat(20_000, 1)
    uniforms = torch.from_numpy(np.random.default_rng(0).random(20_000))
    uniforms[0], uniforms[1] = 0.0, float(np.nextafter(1.0, 0.0))
    ids, logprobs = sample(logits, 0.5, uniforms)
    expected = torch.softmax(logits[0] / 0.5, dim=-1)
    observed = torch.bincount(ids, minlength=5) / len(ids)
    assert torch.allclose(observed, expected, atol=0.01)
    assert torch.allclose(logprobs.exp(), expected[ids], atol=1e-6)
    assert ids[0] == 0 and ids[1] == 3


def test_an_episodes_uniforms_depend_on_its_identity_only() -> None:
    seed = episode_seed(0, "train", 3, "webshop", "task-1", 2)
    assert seed == episode_seed(0, "train", 3, "webshop", "task-1", 2)
    assert 0 <= seed < 2**63
    others = {
        episode_seed(1, "train", 3, "webshop", "task-1", 2),
        episode_seed(0, "validation", 3, "webshop", "task-1", 2),
        episode_seed(0, "train", 4, "webshop", "task-1", 2),
        episode_seed(0, "train", 3, "dbbench", "task-1", 2),
        episode_seed(0, "train", 3, "webshop", "task-12", 2),
        episode_seed(0, "train", 3, "webshop", "task-1", 22),
    }
    assert len(others | {seed}) == 7
    assert np.array_equal(episode_uniforms(seed, 10), episode_uniforms(seed, 200)[:10])
    assert episode_uniforms(0, 3) == pytest.approx(np.random.Generator(np.random.Philox(key=0)).random(3))
