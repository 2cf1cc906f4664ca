"""Methods as the train loop uses them: what they ask for and what they hand to the learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from method_examples import group, vocabulary

from rised.config.loader import read_plain
from rised.methods.composition import Method
from rised.methods.errors import MethodError
from rised.methods.settings import MethodSettings
from rised.methods.streams import Need, Reduction, TrainingSequence
from rised.records.types import TagState
from rised.rubrics.vocabulary import Polarity
from rised.rubrics.windows import TagWindow

POSITIVE = vocabulary().applicable("alfworld", Polarity.POSITIVE)[0].id
NEGATIVE = vocabulary().applicable("alfworld", Polarity.NEGATIVE)[0].id


class Rendering:
    """Encodes a hint as one id per character and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def hint_prefix(self, text: str) -> list[int]:
        self.asked.append(text)
        return [ord(character) for character in text]


def method(repository: Path, name: str, **overrides: Any) -> Method:
    document = read_plain(repository / "configs/methods" / f"{name}.yaml")["method"]
    scale = {"candidate_groups": 6, "selected_groups": 3}
    return Method.from_settings(MethodSettings.model_validate(document | scale | overrides), vocabulary())


@pytest.mark.parametrize(
    ("name", "candidates", "selected", "tags", "terms"),
    [
        ("grpo_64", 3, 3, False, ["rl", "reference_kl"]),
        ("grpo_128", 6, 6, False, ["rl", "reference_kl"]),
        ("global_variance", 6, 3, False, ["rl", "reference_kl"]),
        ("round_robin_variance", 6, 3, False, ["rl", "reference_kl"]),
        ("all_rubric_sd", 3, 3, True, ["rl", "reference_kl", "distill"]),
        ("rised", 6, 3, True, ["rl", "reference_kl", "distill"]),
        ("gigpo", 3, 3, False, ["rl", "reference_kl"]),
        ("sdar", 3, 3, False, ["rl", "reference_kl", "distill"]),
        ("grpo_opsd", 3, 3, False, ["rl", "reference_kl", "distill"]),
        ("opsd", 3, 3, False, ["reference_kl", "distill"]),
        ("orsd", 3, 3, False, ["rl", "reference_kl"]),
    ],
)
def test_each_shipped_method_asks_for_its_groups_tags_and_terms(
    repository: Path, name: str, candidates: int, selected: int, tags: bool, terms: list[str]
) -> None:
    built = method(repository, name)
    assert (built.candidate_count(), built.selected_count(), built.needs_tags) == (candidates, selected, tags)
    assert [term.name for term in built.loss_terms()] == terms
    groups = [group(f"g{i}", states={POSITIVE: TagState.DEMONSTRATES}) for i in range(candidates)]
    assert sum(s.selected for s in built.select(groups, step=0, seed=0)) == selected


def test_the_stored_tokens_reach_the_learner_unchanged_and_only_the_teacher_gets_the_hint(repository: Path) -> None:
    shown = group("g", rewards=[0.0, 1.0], states={POSITIVE: TagState.DEMONSTRATES})
    silent = group("h", rewards=[1.0, 0.0], states={POSITIVE: TagState.ABSENT})
    rendering = Rendering()
    sequences = method(repository, "rised").training_sequences([shown, silent], TagWindow(5), rendering, "compact")
    for sequence, rollout in zip(sequences, [*shown.rollouts, *silent.rollouts], strict=True):
        assert sequence.token_ids == rollout.token_ids and sequence.policy_mask == rollout.policy_mask
        np.testing.assert_array_equal(sequence.sampled_logprobs, rollout.logprobs)
    hint = f"hint: {POSITIVE.replace('_', ' ')}"
    assert rendering.asked == [hint]
    assert [s.teacher_prefix_ids for s in sequences] == [tuple(map(ord, hint))] * 2 + [None] * 2
    np.testing.assert_allclose([s.advantages[0] for s in sequences], [-0.7071, 0.7071, 0.7071, -0.7071], atol=1e-4)


def test_rollouts_without_a_valid_reward_carry_no_token_of_any_term(repository: Path) -> None:
    shown = group("g", rewards=[0.0, None, 1.0], states={POSITIVE: TagState.DEMONSTRATES})
    sequences = method(repository, "rised").training_sequences([shown], TagWindow(5), Rendering(), "compact")
    assert [s.rollout_id for s in sequences] == ["g/0", "g/2"]


def test_a_zero_variance_group_gets_advantages_of_zero_and_its_teacher(repository: Path) -> None:
    shown = group("g", rewards=[0.3, 0.1 + 0.2], states={POSITIVE: TagState.DEMONSTRATES})
    built = method(repository, "rised")
    sequences = built.training_sequences([shown], TagWindow(5), Rendering(), "compact")
    rl, kl, distill = built.loss_terms()
    for sequence in sequences:
        assert not np.any(sequence.advantages) and not rl.moves(sequence) and rl.applies_to(sequence)
        assert distill.moves(sequence) and kl.moves(sequence)


def test_terms_of_coefficient_zero_are_left_out_and_reductions_follow_the_settings(repository: Path) -> None:
    built = method(
        repository,
        "grpo_64",
        kl={"coefficient": 0.0},
        policy_loss={"type": "clipped_surrogate", "reduction": "constant_length", "constant_length": 96},
    )
    (rl,) = built.loss_terms()
    assert (rl.reduction, rl.constant_length, rl.needs) == (Reduction.CONSTANT_LENGTH, 96, {Need.ADVANTAGE})


def test_metrics_count_what_the_selected_groups_carry(repository: Path) -> None:
    built = method(repository, "rised")
    groups = [
        group("a", rewards=[0.0, 1.0], states={POSITIVE: TagState.DEMONSTRATES}),
        group("b", rewards=[1.0, 1.0], states={POSITIVE: TagState.ABSENT}),
        group("c", rewards=[1.0, None], states={POSITIVE: TagState.DEMONSTRATES}),
    ]
    sequences = built.training_sequences(groups, TagWindow(5), Rendering(), "compact")
    found = {m.name.removeprefix("method/"): m.value for m in built.metrics(4, groups, sequences)}
    assert found == {
        "selected_groups": 3,
        "selected_groups_zero_variance": 2,
        "selected_groups_below_two_rewards": 1,
        "selected_groups_with_teacher": 2,
        "selected_rollouts_without_reward": 1,
        "training_sequences": 5,
    }


def test_the_state_survives_json_and_belongs_to_one_method(repository: Path) -> None:
    built, window = method(repository, "rised"), TagWindow(5)
    bad = group("g", states={NEGATIVE: TagState.VIOLATES})
    window.push(0, bad.rollouts, bad.tags)
    assert built.steering_for_next_step(window) == {"alfworld": (NEGATIVE,)}
    state = json.loads(json.dumps(built.state()))
    restored = method(repository, "rised")
    restored.load_state(state)
    assert restored.state() == built.state() != method(repository, "rised").state()
    with pytest.raises(MethodError, match="state of method 'rised', not of 'grpo_64'"):
        method(repository, "grpo_64").load_state(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_mask": (False, True)}, "policy_mask has 2 entries, token_ids 3"),
        ({"policy_mask": (True, False, False)}, "first token cannot be the policy's"),
        ({"sampled_logprobs": np.zeros(2)}, r"sampled_logprobs has shape \(2,\), the mask marks 1"),
        ({"advantages": np.zeros(3)}, r"advantages has shape \(3,\)"),
        ({"advantages": np.array([np.nan])}, "advantages holds NaN or inf"),
    ],
)
def test_a_sequence_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "group_id": "g",
        "rollout_id": "g/0",
        "environment": "alfworld",
        "token_ids": (1, 2, 3),
        "policy_mask": (False, False, True),
        "sampled_logprobs": np.array([-1.0]),
        "advantages": None,
        "teacher_prefix_ids": None,
    }
    TrainingSequence(**fields)
    with pytest.raises(MethodError, match=message):
        TrainingSequence(**(fields | change))
