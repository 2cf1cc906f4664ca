"""A method as the train loop sees it: the pieces of one :class:`MethodSettings` put together.

The loop asks, in this order, how many groups to roll out, what their rollouts are worth, which groups to select, what
the teacher finds out about them, what to train on and with which loss terms, and whom to steer in the next step. The
only state that outlives a step is the steering's; it is JSON. Rollouts, tags and windows come from outside, weights are
the learner's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rised.methods.base import (
    Advantage,
    AdvantageValue,
    PromptGroup,
    Selector,
    Steering,
    Teacher,
    TeacherContext,
    TokenTerm,
    TrainingReward,
)
from rised.methods.errors import MethodError
from rised.methods.kl import kl_diagnostics, kl_token_loss
from rised.methods.registry import build
from rised.methods.rewards import zero_variance
from rised.methods.settings import MethodSettings
from rised.methods.shaping import Shaped
from rised.methods.streams import LossTerm, Need, Reduction, TrainingSequence
from rised.records.types import Metric, Rollout, RubricBundle, Selection

if TYPE_CHECKING:
    from rised.methods.bundles.base import Desk
    from rised.rubrics.blocks import BlockStyle
    from rised.rubrics.vocabulary import Vocabulary
    from rised.rubrics.windows import TagWindow


class HintRenderer(Protocol):
    """Whatever turns a teacher's text into the token ids that stand before the episode."""

    def hint_prefix(self, text: str) -> Sequence[int]:
        """Token ids of the hint block, ready to be followed by a rollout's ``token_ids``."""
        ...


class Method:
    """The pieces of a method, built from its settings."""

    def __init__(
        self,
        settings: MethodSettings,
        *,
        selector: Selector,
        advantage: Advantage,
        policy_loss: TokenTerm,
        teacher: Teacher,
        distillation: TokenTerm,
        steering: Steering,
        reward: TrainingReward,
    ) -> None:
        self.settings = settings
        self.selector = selector
        self.advantage = advantage
        self.policy_loss = policy_loss
        self.teacher = teacher
        self.distillation = distillation
        self.steering = steering
        self.reward = reward

    @classmethod
    def from_settings(cls, settings: MethodSettings, vocabulary: Vocabulary) -> Method:
        """Build every piece that the settings name."""
        kinds = ("selector", "reward", "advantage", "policy_loss", "teacher", "distillation", "steering")
        return cls(settings, **{kind: build(kind, getattr(settings, kind), vocabulary=vocabulary) for kind in kinds})

    @property
    def needs_tags(self) -> bool:
        """Whether a judge must tag the rollouts before :meth:`select`; otherwise tags serve the analysis alone."""
        return self.selector.needs_tags or self.teacher.needs_tags or self.steering.needs_tags

    @property
    def asks_policy(self) -> bool:
        """Whether :meth:`study` has the running policy write."""
        return self.teacher.asks_policy

    def prompts(self) -> dict[str, str]:
        """name -> text of the prompt files that the method's teacher asks somebody with."""
        return self.teacher.prompts()

    def candidate_count(self) -> int:
        """How many prompt groups to roll out in each update."""
        return self.selector.candidate_count(self.settings.candidate_groups, self.settings.selected_groups)

    def selected_count(self) -> int:
        """How many of them are trained on."""
        return self.selector.selected_count(self.settings.candidate_groups, self.settings.selected_groups)

    def select(self, groups: Sequence[PromptGroup], step: int, seed: int) -> list[Selection]:
        """One record per candidate, exactly :meth:`selected_count` of them selected."""
        return self.selector.select(groups, self.selected_count(), step, seed)

    def rewarded(self, groups: Sequence[PromptGroup]) -> list[PromptGroup]:
        """The groups as training sees them: each rollout with its training reward. Stored rollouts keep their own."""
        return [
            replace(group, rollouts=tuple(replace(r, reward=self.reward.reward(r)) for r in group.rollouts))
            for group in groups
        ]

    def study(self, groups: Sequence[PromptGroup], desk: Desk, step: int, seed: int) -> list[RubricBundle]:
        """Let the teacher find out what it needs of the selected groups; once a step, before the sequences."""
        return self.teacher.study(groups, desk, step, seed)

    def training_sequences(
        self, groups: Sequence[PromptGroup], window: TagWindow, rendering: HintRenderer, style: BlockStyle
    ) -> list[TrainingSequence]:
        """What the learner trains on: the selected groups' rollouts with a valid reward, in order.

        ``window`` already holds the tags of this step. Rollouts without a valid reward carry no token of any term.
        """
        prefixes: dict[str, tuple[int, ...]] = {}
        sequences = []
        for group, advantages in zip(groups, self.advantage.advantages(groups), strict=True):
            contexts = self.teacher.contexts(group, window, style)
            for rollout, advantage, context in zip(group.rollouts, advantages, contexts, strict=True):
                if not rollout.reward_valid:
                    continue
                if context is not None and context.text not in prefixes:
                    prefixes[context.text] = tuple(rendering.hint_prefix(context.text))
                sequences.append(_sequence(group, rollout, advantage, context, prefixes))
        return sequences

    def loss_terms(self) -> tuple[LossTerm, ...]:
        """The terms of the loss: ``rl``, ``reference_kl`` and ``distill``; terms of coefficient 0 are left out."""
        policy, kl, distillation = self.settings.policy_loss, self.settings.kl, self.settings.distillation
        weight = self.advantage.gap_weight
        policy_loss = Shaped(self.policy_loss, weight) if weight > 0.0 else self.policy_loss
        terms = (
            LossTerm(
                "rl",
                policy.coefficient,  # type: ignore[attr-defined]
                policy_loss.token_loss,
                frozenset({Need.ADVANTAGE} | ({Need.TEACHER_GAP} if weight > 0.0 else set())),
                policy.reduction,  # type: ignore[attr-defined]
                policy.constant_length,  # type: ignore[attr-defined]
                diagnostics=policy_loss.diagnostics,
                micro_batch_sequences=policy.micro_batch_sequences,  # type: ignore[attr-defined]
            ),
            LossTerm(
                "reference_kl",
                kl.coefficient,
                kl_token_loss(kl.estimator),
                frozenset({Need.REFERENCE}),
                kl.reduction,
                kl.constant_length,
                only_with_signal=kl.skip_zero_signal,
                micro_batch_sequences=kl.micro_batch_sequences,
                diagnostics=kl_diagnostics(kl.estimator),
                uses_sampled=False,
            ),
            LossTerm(
                "distill",
                distillation.coefficient,  # type: ignore[attr-defined]
                self.distillation.token_loss,
                frozenset({Need.TEACHER}),
                Reduction.TOKEN_MEAN,
                diagnostics=self.distillation.diagnostics,
                uses_sampled=self.distillation.uses_sampled,
            ),
        )
        return tuple(term for term in terms if term.coefficient > 0.0)

    def steering_for_next_step(self, window: TagWindow) -> dict[str, tuple[str, ...]]:
        """environment -> rubrics of the avoid block in the next step's *training* rollouts. Call once per step."""
        return self.steering.next_step(window)

    def metrics(self, step: int, groups: Sequence[PromptGroup], sequences: Sequence[TrainingSequence]) -> list[Metric]:
        """Counts of what the selected groups carry: how many have no preference, no reward, no teacher.

        Where the teacher shapes the advantage, also the share of their policy tokens that it corrects.
        """
        taught = {sequence.group_id for sequence in sequences if sequence.teacher_prefix_ids is not None}
        counts = {
            "selected_groups": len(groups),
            "selected_groups_zero_variance": sum(zero_variance(group.valid_rewards) for group in groups),
            "selected_groups_below_two_rewards": sum(len(group.valid_rewards) < 2 for group in groups),
            "selected_groups_with_teacher": len(taught),
            "selected_rollouts_without_reward": sum(not r.reward_valid for group in groups for r in group.rollouts),
            "training_sequences": len(sequences),
        }
        found = [Metric(step, f"method/{name}", float(value), "count") for name, value in counts.items()]
        if self.advantage.shaped_by_teacher:
            tokens = sum(s.policy_token_count for s in sequences)
            corrected = sum(s.policy_token_count for s in sequences if s.teacher_prefix_ids is not None)
            share = corrected / tokens if tokens else None
            found.append(Metric(step, "method/corrected_token_share", share, "fraction"))
        return found

    def reward_metrics(self, step: int, groups: Sequence[PromptGroup]) -> list[Metric]:
        """Mean training reward per environment over all rolled-out groups; none where it is the environment's own."""
        if self.settings.reward.type == "environment":  # type: ignore[attr-defined]
            return []
        found = []
        for environment in dict.fromkeys(group.environment for group in groups):
            rewards = np.concatenate([group.valid_rewards for group in groups if group.environment == environment])
            mean = float(rewards.mean()) if len(rewards) else None
            found.append(Metric(step, f"training_reward/{environment}", mean, "reward"))
        return found

    def state(self) -> dict[str, Any]:
        """JSON-serialisable state of the method."""
        return {"method": self.settings.name, "steering": self.steering.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned. Raises MethodError for another method's state."""
        if state.get("method") != self.settings.name:
            raise MethodError(f"this is the state of method {state.get('method')!r}, not of {self.settings.name!r}")
        self.steering.load_state(state["steering"])


def _sequence(
    group: PromptGroup,
    rollout: Rollout,
    advantage: AdvantageValue,
    context: TeacherContext | None,
    prefixes: Mapping[str, tuple[int, ...]],
) -> TrainingSequence:
    sampled_logprobs = np.asarray(rollout.logprobs, dtype=np.float64)
    return TrainingSequence(
        group_id=group.group_id,
        rollout_id=rollout.rollout_id,
        environment=group.environment,
        token_ids=rollout.token_ids,
        policy_mask=rollout.policy_mask,
        sampled_logprobs=sampled_logprobs,
        advantages=None
        if advantage is None
        else np.broadcast_to(np.float64(advantage), sampled_logprobs.shape)
        if np.ndim(advantage) == 0
        else np.asarray(advantage, dtype=np.float64),
        teacher_prefix_ids=None if context is None else prefixes[context.text],
    )
