"""One episode as it grows: token ids, mask, log-probabilities, turns, and how it became a rollout.

Pure bookkeeping: no model, no environment. Token ids are only ever appended; the mask is True exactly where the policy
sampled.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rised.environments.base import EnvironmentFault, StepResult
from rised.models.protocols import Generated
from rised.models.randomness import episode_uniforms
from rised.records.text import TEXT_REPLACED, UNDECODABLE_IDS, storable
from rised.records.types import Rollout, StopReason, Turn
from rised.rollouts.plans import EpisodePlan


def storable_result(result: StepResult) -> StepResult:
    """The result with its texts :func:`~rised.records.text.storable`; ``info`` says so where that changed any."""
    changed = {name: storable(getattr(result, name)) for name in ("observation", "action_mapped", "info")}
    stored = replace(result, **changed)
    return result if stored == result else replace(stored, info=stored.info | {TEXT_REPLACED: True})


class Episode:
    """A running episode. ``prompt`` are the ids that the engine has not seen yet."""

    def __init__(self, plan: EpisodePlan, max_episode_tokens: int) -> None:
        self.plan = plan
        self.token_ids: list[int] = []
        self.policy_mask: list[bool] = []
        self.logprobs: list[float] = []
        self.turns: list[Turn] = []
        self.prompt: list[int] = []
        self.observation = ""
        self.system_prompt = ""
        self.text_replaced = False
        """Whether the system prompt or the first observation held a lone surrogate."""
        self.undecodable = 0
        """Token ids of the last reply that the tokenizer does not know."""
        self.stop_reason: StopReason | None = None
        self._reward: float | None = None
        self._success: bool | None = None
        self._uniforms = episode_uniforms(plan.seed, max_episode_tokens)
        self._reply = Generated([], [], True)
        self._reply_text = ""
        self._reply_span = (0, 0)

    @property
    def live(self) -> bool:
        return self.stop_reason is None

    def next_uniforms(self, count: int) -> np.ndarray:
        """Uniforms of the next ``count`` sampled tokens: numbered over the episode, whatever happens around it."""
        return self._uniforms[len(self.logprobs) : len(self.logprobs) + count]

    def add_prompt(self, ids: list[int], observation: str) -> None:
        """Append tokens that are not the policy's and end in the header of its next reply."""
        self.prompt += ids
        self.token_ids += ids
        self.policy_mask += [False] * len(ids)
        self.observation = observation

    def add_reply(self, reply: Generated, text: str, end_token_id: int) -> None:
        """Append what was sampled; a truncated reply is closed by an end token that is not the policy's."""
        start = len(self.token_ids)
        self.prompt = []
        self.token_ids += reply.token_ids
        self.policy_mask += [True] * len(reply.token_ids)
        self.logprobs += reply.logprobs
        self._reply, self._reply_text, self._reply_span = reply, text, (start, len(self.token_ids))
        if not reply.ended:
            self.prompt = [end_token_id]
            self.token_ids.append(end_token_id)
            self.policy_mask.append(False)

    def add_result(self, result: StepResult) -> None:
        """Complete the turn with what the environment answered."""
        start, end = self._reply_span
        noted = {UNDECODABLE_IDS: self.undecodable} if self.undecodable else {}
        if self.text_replaced and not self.turns:
            noted[TEXT_REPLACED] = True
        self.turns.append(
            Turn(
                observation=self.observation,
                action_raw=self._reply_text,
                action_mapped=result.action_mapped,
                action_valid=result.action_valid,
                action_start=start,
                action_end=end,
                truncated=not self._reply.ended,
                info=result.info | noted,
            )
        )
        self.observation = result.observation
        if result.done:
            if result.stop is None or result.stop not in set(StopReason):
                raise EnvironmentFault(
                    f"{self.plan.task.environment} ended task {self.plan.task.task_id!r} with the unknown stop reason "
                    f"{result.stop!r}; known: {', '.join(StopReason)}"
                )
            self.stop(StopReason(result.stop), result.reward, result.success)

    def add_unexecuted_turn(self) -> None:
        """Complete the turn of a reply that was cut by the episode's token budget and not executed."""
        self.add_result(StepResult("", False, "", False, info={"executed": False}))

    def stop(self, reason: StopReason, reward: float | None = None, success: bool | None = None) -> None:
        """End the episode. Without a reward it is invalid: never scored, never a zero."""
        self.stop_reason, self._reward, self._success = reason, reward, success

    def rollout(self) -> Rollout:
        """The finished record."""
        assert self.stop_reason is not None
        plan = self.plan
        return Rollout(
            rollout_id=plan.rollout_id,
            run=plan.run,
            step=plan.step,
            weight_version=plan.weight_version,
            split=plan.split,
            environment=plan.task.environment,
            task_id=plan.task.task_id,
            group_id=plan.group_id,
            rollout_index=plan.rollout_index,
            seed=plan.seed,
            system_prompt=self.system_prompt,
            steering_rubrics=plan.steering_rubrics,
            steering_text=plan.steering_text,
            steering_text_hash=plan.steering_text_hash,
            turns=tuple(self.turns),
            final_observation=self.observation,
            token_ids=tuple(self.token_ids),
            policy_mask=tuple(self.policy_mask),
            logprobs=tuple(self.logprobs),
            reward=self._reward,
            reward_valid=self._reward is not None,
            success=self._success,
            stop_reason=self.stop_reason,
        )
