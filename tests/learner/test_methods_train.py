"""Shipped methods end to end on a tiny model: groups in, one update out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from learner_examples import VOCABULARY_SIZE, learner, measures, sequences, tiny_model, weights

from rised.config.loader import read_plain
from rised.learner.learner import Learner
from rised.learner.types import UpdateReport
from rised.methods.base import PromptGroup
from rised.methods.composition import Method
from rised.methods.settings import MethodSettings
from rised.records.types import Rollout, StopReason, Tag, TagState, TagStatus
from rised.rubrics.vocabulary import Polarity, load_vocabulary
from rised.rubrics.windows import TagWindow

VOCABULARY = load_vocabulary()


class Rendering:
    """Encodes a hint by its characters, within the tiny model's vocabulary."""

    def hint_prefix(self, text: str) -> list[int]:
        return [ord(character) % VOCABULARY_SIZE for character in text[:40]]


def candidate(index: int, environment: str, rewards: tuple[float, float], shown: int) -> PromptGroup:
    """Two rollouts of random tokens; both demonstrate the environment's positive number ``shown``."""
    rubric = VOCABULARY.applicable(environment, Polarity.POSITIVE)[shown].id
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
                turns=(),
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
    return PromptGroup(f"{environment}{index}", environment, tuple(rollouts), tuple(tags))


def one_update(repository: Path, name: str, all_equal: bool = False) -> tuple[Method, Learner, UpdateReport]:
    document = read_plain(repository / "configs/methods" / f"{name}.yaml")["method"]
    settings = MethodSettings.model_validate(document | {"candidate_groups": 6, "selected_groups": 3})
    method, one, window = Method.from_settings(settings, VOCABULARY), learner(), TagWindow(5)
    pool = [
        candidate(i, ("alfworld", "webshop")[i % 2], (1.0, 1.0 if all_equal else 0.0), shown=i % 3) for i in range(6)
    ]
    groups = pool[: method.candidate_count()]
    chosen = {s.group_id for s in method.select(groups, step=0, seed=0) if s.selected}
    window.push(0, [r for g in groups for r in g.rollouts], [t for g in groups for t in g.tags])
    batch = method.training_sequences([g for g in groups if g.group_id in chosen], window, Rendering(), "compact")
    return method, one, one.update(batch, method.loss_terms())


@pytest.mark.parametrize(
    "name", ["grpo_64", "grpo_128", "global_variance", "round_robin_variance", "all_rubric_sd", "rised"]
)
def test_every_shipped_method_makes_an_update(repository: Path, name: str) -> None:
    method, one, report = one_update(repository, name)
    found = measures(report)
    assert not report.empty and not torch.equal(weights(one.model), weights(tiny_model()))
    assert found["trained_sequences"] == 2 * method.selected_count()
    assert ("loss/distill" in found) is (name in ("all_rubric_sd", "rised"))
    assert report.timings.reference_s > 0 and (report.timings.teacher_s > 1e-3) is (name in ("all_rubric_sd", "rised"))
    assert {m.name for m in report.records(step=3)} == set(found) and report.records(step=3)[0].step == 3


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
