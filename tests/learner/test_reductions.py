"""Reductions: the case's numbers, empty sequences, ranks and padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rised.learner.errors import LearnerError
from rised.learner.reductions import Totals, token_weights
from rised.methods.streams import Reduction


@pytest.fixture(scope="module")
def case(cases_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cases_dir / "29-empty-masks-and-denominators/batch.json").read_text())
    return found


def reduced(
    reduction: Reduction, losses: np.ndarray, mask: np.ndarray, totals: Totals | None = None, length: int | None = None
) -> float:
    counts = [int(c) for c in mask.sum(axis=1)]
    weights = token_weights(reduction, counts, totals or Totals.of(counts), length)
    return float(sum(w * row[m].sum() for w, row, m in zip(weights, losses, mask, strict=True)))


def test_reductions_give_the_numbers_of_the_case(case: dict[str, Any]) -> None:
    losses, mask, expected = np.array(case["per_token_loss"]), np.array(case["mask"]).astype(bool), case["expected"]
    for reduction in (Reduction.TOKEN_MEAN, Reduction.SEQUENCE_MEAN_TOKEN_MEAN, Reduction.SEQUENCE_MEAN_TOKEN_SUM):
        assert reduced(reduction, losses, mask) == pytest.approx(expected[reduction.value], abs=1e-12)
    found = reduced(Reduction.CONSTANT_LENGTH, losses, mask, length=4)
    assert found == pytest.approx(expected["constant_length_4"], abs=1e-12)


def test_two_ranks_together_give_the_global_mean_and_not_the_mean_of_ranks(case: dict[str, Any]) -> None:
    losses, mask = np.array(case["per_token_loss"]), np.array(case["mask"]).astype(bool)
    ranks = [(losses[:1], mask[:1]), (losses[1:], mask[1:])]
    totals = sum((Totals.of([int(c) for c in m.sum(axis=1)]) for _, m in ranks), Totals(0, 0))
    parts = [reduced(Reduction.TOKEN_MEAN, rows, m, totals) for rows, m in ranks]
    assert sum(parts) == pytest.approx(case["expected"]["two_ranks_token_mean"], abs=1e-12)


ANY_CUT = [reduction for reduction in Reduction if reduction is not Reduction.MICRO_BATCH_TOKEN_MEAN]


@given(st.lists(st.integers(0, 9), max_size=8), st.sampled_from(ANY_CUT), st.data())
def test_any_cut_into_ranks_gives_the_weights_of_the_whole(
    counts: list[int], reduction: Reduction, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(counts)))
    whole = token_weights(reduction, counts, Totals.of(counts), 7)
    totals = Totals.of(counts[:cut]) + Totals.of(counts[cut:])
    parts = [token_weights(reduction, part, totals, 7) for part in (counts[:cut], counts[cut:])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert np.isfinite(whole).all() and (whole[np.array(counts, dtype=int) == 0] == 0).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 4))
def test_sequences_without_tokens_change_nothing(counts: list[int], empty: int) -> None:
    for reduction in Reduction:
        alone = token_weights(reduction, counts, Totals.of(counts), 7)
        padded = counts + [0] * empty
        np.testing.assert_array_equal(token_weights(reduction, padded, Totals.of(padded), 7)[: len(counts)], alone)


def test_a_batch_without_any_token_has_weights_of_zero_and_not_nan() -> None:
    for reduction in Reduction:
        assert token_weights(reduction, [0, 0], Totals.of([0, 0]), 7).tolist() == [0.0, 0.0]


def test_constant_length_without_a_length_is_refused() -> None:
    with pytest.raises(LearnerError, match="needs a constant_length"):
        token_weights(Reduction.CONSTANT_LENGTH, [3], Totals.of([3]))


@given(st.lists(st.lists(st.floats(-3, 3), max_size=5), min_size=1, max_size=9), st.integers(1, 4))
def test_the_micro_batch_mean_is_the_mean_over_parts_of_each_parts_token_mean(
    losses: list[list[float]], size: int
) -> None:
    present = [row for row in losses if row]
    parts = [sum(present[start : start + size], []) for start in range(0, len(present), size)]
    expected = sum(sum(part) / len(part) for part in parts) / len(parts) if parts else 0.0
    counts = [len(row) for row in losses]
    weights = token_weights(Reduction.MICRO_BATCH_TOKEN_MEAN, counts, Totals.of(counts), size)
    assert sum(w * sum(row) for w, row in zip(weights, losses, strict=True)) == pytest.approx(expected, abs=1e-12)


def test_parts_of_the_micro_batch_mean_are_made_of_sequences_that_have_tokens() -> None:
    """Counted with the empty ones, the parts would be [0, 3], [0, 1], [2] and each weigh a third."""
    counts = [0, 3, 0, 1, 2]
    weights = token_weights(Reduction.MICRO_BATCH_TOKEN_MEAN, counts, Totals.of(counts), 2)
    np.testing.assert_allclose(weights, [0, 1 / (2 * 4), 0, 1 / (2 * 4), 1 / (2 * 2)], rtol=1e-12)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_parts_of_one_sequence_are_sequence_means_and_one_part_is_the_token_mean(counts: list[int]) -> None:
    totals = Totals.of(counts)
    for size, other in ((1, Reduction.SEQUENCE_MEAN_TOKEN_MEAN), (len(counts), Reduction.TOKEN_MEAN)):
        found = token_weights(Reduction.MICRO_BATCH_TOKEN_MEAN, counts, totals, size)
        np.testing.assert_allclose(found, token_weights(other, counts, totals), rtol=1e-12)


def test_the_micro_batch_mean_wants_its_size_and_the_whole_batch() -> None:
    with pytest.raises(LearnerError, match="needs micro_batch_sequences"):
        token_weights(Reduction.MICRO_BATCH_TOKEN_MEAN, [3], Totals.of([3]))
    with pytest.raises(LearnerError, match="was given 1 of the batch's 2 sequences"):
        token_weights(Reduction.MICRO_BATCH_TOKEN_MEAN, [3], Totals.of([3, 4]), 2)
