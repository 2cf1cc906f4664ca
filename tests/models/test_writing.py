"""Texts outside of episodes: seeds, top-p, limits, and that the weights and the request alone decide them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import qwen2, tokenizer

from rised.models.engine import TransformersEngine
from rised.models.rendering import ChatRendering
from rised.models.sampling import sample
from rised.models.writing import WritingRequest, write, writing_seed

REQUEST = WritingRequest("You write.", "the shelf 1", (11, 12, 13), max_new_tokens=24, temperature=0.7, top_p=0.9)


def engine_and_rendering() -> tuple[TransformersEngine, ChatRendering]:
    rendering = ChatRendering(tokenizer())
    return TransformersEngine(qwen2(), rendering.end_token_id), rendering


def test_one_text_for_each_seed_and_equal_seeds_give_equal_texts() -> None:
    engine, rendering = engine_and_rendering()
    found = write(engine, rendering, REQUEST)
    assert len({one.text for one in found}) == 3 and all(one.fits for one in found)
    again = write(engine, rendering, dataclasses.replace(REQUEST, seeds=(12, 12)))
    assert again == [found[1], found[1]]


def test_a_text_is_cut_at_its_limit_and_says_so() -> None:
    engine, rendering = engine_and_rendering()
    found = write(engine, rendering, dataclasses.replace(REQUEST, seeds=tuple(range(20)), max_new_tokens=2))
    assert any(not one.ended for one in found)
    assert engine.tokens_generated <= 40


def test_a_question_that_leaves_no_room_is_not_asked() -> None:
    engine, rendering = engine_and_rendering()
    found = write(engine, rendering, dataclasses.replace(REQUEST, max_new_tokens=engine.max_positions))
    assert [(one.text, one.fits) for one in found] == [("", False)] * 3 and engine.tokens_generated == 0


def test_seeds_of_texts_depend_on_each_part_of_their_identity() -> None:
    seeds = {writing_seed(*identity) for identity in ((0, 1, "g", 0), (1, 1, "g", 0), (0, 2, "g", 0), (0, 1, "h", 0))}
    assert len(seeds | {writing_seed(0, 1, "g", 1)}) == 5


def test_top_p_draws_from_the_fewest_likeliest_tokens_and_reports_the_whole_distributions_log_probability() -> None:
    probabilities = torch.tensor([[0.1, 0.5, 0.05, 0.35]])
    uniforms = torch.tensor(np.linspace(0, 1, 101)[:-1])
    logits = probabilities.log().expand(100, -1)
    ids, logprobs = sample(logits, 1.0, uniforms, top_p=0.8)
    assert set(ids.tolist()) == {1, 3}
    assert ids.tolist().count(1) == pytest.approx(100 * 0.5 / 0.85, abs=1)
    torch.testing.assert_close(logprobs, probabilities[0, ids].log())
    assert set(sample(logits, 1.0, uniforms, top_p=0.86)[0].tolist()) == {0, 1, 3}
    assert set(sample(logits, 1.0, uniforms, top_p=0.01)[0].tolist()) == {1}, "the likeliest is always there"


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12), st.floats(0.05, 1.0), st.floats(0, 1, exclude_max=True))
def test_no_token_outside_the_nucleus_is_drawn(logits: list[float], top_p: float, uniform: float) -> None:
    row = torch.tensor([logits])
    (chosen,) = sample(row, 1.0, torch.tensor([uniform], dtype=torch.float64), top_p)[0].tolist()
    probabilities = row.double().softmax(-1)[0]
    likelier = float(probabilities[probabilities > probabilities[chosen] * (1 + 1e-6)].sum())
    assert likelier < top_p + 1e-5


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12), st.floats(0, 1, exclude_max=True))
def test_a_top_p_of_one_changes_no_draw(logits: list[float], uniform: float) -> None:
    row, draw = torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64)
    for plain, whole in zip(sample(row, 0.7, draw), sample(row, 0.7, draw, 1.0), strict=True):
        assert torch.equal(plain, whole)
