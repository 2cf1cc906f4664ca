"""A method as the train loop sees it: the pieces of one :class:`MethodSettings` put together.

The loop asks, in this order, how many groups to roll out, which to select, what to train on and with which loss terms,
and whom to steer in the next step. The only state is the steering's; it is JSON. Rollouts, tags and windows come from
outside, weights are the learner's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
)
from rised.methods.errors import MethodError
from rised.methods.kl import kl_token_loss
from rised.methods.registry import build
from rised.methods.rewards import zero_variance
from rised.methods.settings import MethodSettings
from rised.methods.streams import LossTerm, Need, Reduction, TrainingSequence
from rised.records.types import Metric, Rollout, Selection

if TYPE_CHECKING:
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
    ) -> None:
        self.settings = settings
        self.selector = selector
        self.advantage = advantage
        self.policy_loss = policy_loss
        self.teacher = teacher
        self.distillation = distillation
        self.steering = steering

    @classmethod
    def from_settings(cls, settings: MethodSettings, vocabulary: Vocabulary) -> Method:
        """Build every piece that the settings name."""
        kinds = ("selector", "advantage", "policy_loss", "teacher", "distillation", "steering")
        return cls(settings, **{kind: build(kind, getattr(settings, kind), vocabulary=vocabulary) for kind in kinds})

    @property
    def needs_tags(self) -> bool:
        """Whether a judge must tag the rollouts before :meth:`select`; otherwise tags serve the analysis alone."""
        return self.selector.needs_tags or self.teacher.needs_tags or self.steering.needs_tags

    def candidate_count(self) -> int:
        """How many prompt groups to roll out in each update."""
        return self.selector.candidate_count(self.settings.candidate_groups, self.settings.selected_groups)

    def selected_count(self) -> int:
        """How many of them are trained on."""
        return self.selector.selected_count(self.settings.candidate_groups, self.settings.selected_groups)

    def select(self, groups: Sequence[PromptGroup], step: int, seed: int) -> list[Selection]:
        """One record per candidate, exactly :meth:`selected_count` of them selected."""
        return self.selector.select(groups, self.selected_count(), step, seed)

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
        terms = (
            LossTerm(
                "rl",
                1.0,
                self.policy_loss.token_loss,
                frozenset({Need.ADVANTAGE}),
                policy.reduction,  # type: ignore[attr-defined]
                policy.constant_length,  # type: ignore[attr-defined]
                diagnostics=self.policy_loss.diagnostics,
            ),
            LossTerm(
                "reference_kl",
                kl.coefficient,
                kl_token_loss(kl.estimator),
                frozenset({Need.REFERENCE}),
                kl.reduction,
                kl.constant_length,
                only_with_signal=kl.skip_zero_signal,
            ),
            LossTerm(
                "distill",
                distillation.coefficient,  # type: ignore[attr-defined]
                self.distillation.token_loss,
                frozenset({Need.TEACHER}),
                Reduction.TOKEN_MEAN,
                diagnostics=self.distillation.diagnostics,
            ),
        )
        return tuple(term for term in terms if term.coefficient > 0.0)

    def steering_for_next_step(self, window: TagWindow) -> dict[str, tuple[str, ...]]:
        """environment -> rubrics of the avoid block in the next step's *training* rollouts. Call once per step."""
        return self.steering.next_step(window)

    def metrics(self, step: int, groups: Sequence[PromptGroup], sequences: Sequence[TrainingSequence]) -> list[Metric]:
        """Counts of what the selected groups carry: how many have no preference, no reward, no teacher."""
        taught = {sequence.group_id for sequence in sequences if sequence.teacher_prefix_ids is not None}
        counts = {
            "selected_groups": len(groups),
            "selected_groups_zero_variance": sum(zero_variance(group.valid_rewards) for group in groups),
            "selected_groups_below_two_rewards": sum(len(group.valid_rewards) < 2 for group in groups),
            "selected_groups_with_teacher": len(taught),
            "selected_rollouts_without_reward": sum(not r.reward_valid for group in groups for r in group.rollouts),
            "training_sequences": len(sequences),
        }
        return [Metric(step, f"method/{name}", float(value), "count") for name, value in counts.items()]

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
