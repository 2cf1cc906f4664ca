"""Shipped methods end to end on a tiny model: groups in, one update out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from learner_examples import VOCABULARY_SIZE, count_passes, learner, measures, sequences, tiny_model, weights

from rised.config.overlays import compose, compose_text, merge
from rised.config.source import plain_value
from rised.learner.learner import Learner
from rised.learner.types import UpdateReport
from rised.methods.base import PromptGroup
from rised.methods.composition import Method
from rised.methods.settings import MethodSettings
from rised.models.writing import WritingRequest, Written
from rised.records.types import Rollout, StopReason, Tag, TagState, TagStatus, Turn
from rised.rubrics.verifier_llm import BundleScores, Question
from rised.rubrics.vocabulary import Polarity, load_vocabulary
from rised.rubrics.windows import TagWindow

VOCABULARY = load_vocabulary()


class Rendering:
    """Encodes a hint by its characters, within the tiny model's vocabulary."""

    def hint_prefix(self, text: str) -> list[int]:
        return [ord(character) % VOCABULARY_SIZE for character in text[:40]]


def candidate(index: int, environment: str, rewards: tuple[float, float], shown: int) -> PromptGroup:
    """Two rollouts of random tokens; both demonstrate the environment's positive number ``shown``, one its last too."""
    rubric, other = (VOCABULARY.applicable(environment, Polarity.POSITIVE)[i].id for i in (shown, -1))
    rollouts, tags = [], []
    for k, (s, reward) in enumerate(zip(sequences(tiny_model(), count=2, seed=10 + index), rewards, strict=True)):
        rollout_id = f"{environment}{index}/{k}"
        rollouts.append(
            Rollout(
                rollout_id=rollout_id,
                run="run",
                step=0,
                weight_version=0,
                split="train",
                environment=environment,
                task_id=f"{index}",
                group_id=f"{environment}{index}",
                rollout_index=k,
                seed=0,
                system_prompt="",
                steering_rubrics=(),
                steering_text="",
                steering_text_hash="",
                turns=(Turn("room", "go", "go", True, 3, 6, False),),
                final_observation="",
                token_ids=s.token_ids,
                policy_mask=s.policy_mask,
                logprobs=tuple(float(v) for v in s.sampled_logprobs),
                reward=reward,
                reward_valid=True,
                success=reward == 1.0,
                stop_reason=StopReason.ENVIRONMENT_DONE,
            )
        )
        tags.append(Tag(rollout_id, rubric, TagState.DEMONSTRATES, None, "judge", TagStatus.OK))
        state = TagState.DEMONSTRATES if k == 0 else TagState.ABSENT
        tags.append(Tag(rollout_id, other, state, None, "judge", TagStatus.OK))
    return PromptGroup(f"{environment}{index}", environment, tuple(rollouts), tuple(tags))


class Desk:
    """Nobody to ask: the bundles of these tests come from the vocabulary, their scores from the tags."""

    verifier_id = ""

    def write(self, requests: Sequence[WritingRequest]) -> list[list[Written]]:
        raise AssertionError("no policy writes here")

    def verify(self, questions: Sequence[Question], prompt: str) -> list[BundleScores]:
        raise AssertionError("no model is asked here")


LAPTOP = {
    f"orsd{variant}": {"teacher": {"writer": {"type": "vocabulary"}, "verifier": {"type": verifier}}}
    for variant, verifier in (
        ("", "tags"),
        ("_alpha_0001", "tags"),
        ("_alpha_01", "tags"),
        ("_random_rubric", "none"),
        ("_without_alignment", "none"),
    )
}
"""What a policy that cannot write needs, as in configs/experiments/laptop_orsd.yaml."""


def shipped(repository: Path, name: str) -> MethodSettings:
    document = compose([repository / "configs/methods" / f"{name}.yaml"])
    overlay = {"candidate_groups": 6, "selected_groups": 3} | LAPTOP.get(name, {})
    document = merge(document, compose_text(json.dumps({"method": overlay}), "overlay"))
    return MethodSettings.model_validate(plain_value(document)["method"])


def one_update(
    repository: Path, name: str, all_equal: bool = False, updates: int = 1
) -> tuple[Method, Learner, UpdateReport]:
    method, one, window = Method.from_settings(shipped(repository, name), VOCABULARY), learner(), TagWindow(5)
    pool = [
        candidate(i, ("alfworld", "webshop")[i % 2], (1.0, 1.0 if all_equal else 0.0), shown=i % 3) for i in range(6)
    ]
    groups = pool[: method.candidate_count()]
    chosen = {s.group_id for s in method.select(groups, step=0, seed=0) if s.selected}
    window.push(0, [r for g in groups for r in g.rollouts], [t for g in groups for t in g.tags])
    selected = [g for g in groups if g.group_id in chosen]
    for step in range(updates):
        method.study(selected, Desk(), step, seed=0)
        batch = method.training_sequences(selected, window, Rendering(), "compact")
        report = one.update(batch, method.loss_terms())
    return method, one, report


@pytest.mark.parametrize(
    "name", ["grpo_64", "grpo_128", "global_variance", "round_robin_variance", "all_rubric_sd", "rised"]
)
def test_every_shipped_method_makes_an_update(repository: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(monkeypatch)
    method, one, report = one_update(repository, name)
    found = measures(report)
    assert not report.empty and not torch.equal(weights(one.model), weights(tiny_model()))
    assert found["trained_sequences"] == 2 * method.selected_count()
    assert ("loss/distill" in found) is (name in ("all_rubric_sd", "rised"))
    assert passes["reference"] == found["trained_sequences"]
    assert passes["teacher"] == (found["trained_sequences"] if name in ("all_rubric_sd", "rised") else 0)
    assert {m.name for m in report.records(step=3)} == set(found) and report.records(step=3)[0].step == 3


RELATIVES = ["gigpo", "sdar", "opsd", "grpo_opsd", "orsd_offline_rubric", *LAPTOP]


@pytest.mark.parametrize("name", RELATIVES)
def test_every_relative_makes_two_updates_with_the_terms_that_it_names(
    repository: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = count_passes(monkeypatch)
    method, one, report = one_update(repository, name, updates=2)
    found = measures(report)
    assert not report.empty and not torch.equal(weights(one.model), weights(tiny_model())) and one.updates == 2
    assert ("loss/distill" in found) is (name in ("sdar", "opsd", "grpo_opsd"))
    assert ("loss/rl" in found) is (name != "opsd")
    assert (passes["teacher"] > 0) is (name != "gigpo")
    if name.startswith("orsd"):
        assert found["rl/corrected_share"] == 1.0 and (found["rl/absolute_gap"] or 0) > 0


def test_a_larger_alpha_moves_the_policy_gradient_further_from_grpos(repository: Path) -> None:
    ends = {
        name: weights(one_update(repository, name)[1].model)
        for name in ("orsd_alpha_0001", "orsd", "orsd_alpha_01", "grpo_64")
    }
    assert not torch.equal(ends["orsd_alpha_0001"], ends["orsd_alpha_01"])
    losses = {name: measures(one_update(repository, name)[2])["loss/rl"] or 0.0 for name in ends}
    from_grpo = [abs(losses[name] - losses["grpo_64"]) for name in ("orsd_alpha_0001", "orsd", "orsd_alpha_01")]
    assert 0 < from_grpo[0] < from_grpo[1] < from_grpo[2]


def test_where_all_rewards_are_equal_rised_still_learns_from_its_teacher(repository: Path) -> None:
    found = measures(one_update(repository, "rised", all_equal=True)[2])
    assert found["loss/rl"] == 0.0
    assert found["tokens/distill"] == found["tokens/rl"] and found["distill/gap"] != 0.0


def test_skipping_zero_signal_leaves_plain_grpo_nothing_to_do_where_all_rewards_are_equal(repository: Path) -> None:
    method, one, report = one_update(repository, "grpo_64", all_equal=True)
    assert not report.empty
    terms = [dataclasses.replace(t, only_with_signal=t.name == "reference_kl") for t in method.loss_terms()]
    batch = [dataclasses.replace(s, teacher_prefix_ids=None) for s in sequences(one.model, advantages=(0.0,))]
    before = weights(one.model)
    assert one.update(batch, terms).empty and torch.equal(weights(one.model), before)
