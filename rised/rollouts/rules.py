"""The rules of an episode: how it begins, how long a reply may be, when it ends. The same for every collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rised.config import ConfigError
from rised.environments.base import StepResult, Task
from rised.environments.pool import EnvironmentPool, EpisodeFault
from rised.models.errors import ModelError
from rised.models.protocols import Generated
from rised.models.rendering import ChatRendering
from rised.records.text import storable
from rised.records.types import StopReason
from rised.rollouts.collection import CollectionRequest
from rised.rollouts.episode import Episode, storable_result
from rised.rollouts.settings import RolloutSettings

END_TOKENS = 1
"""Kept free of each episode's tokens, for the end token that closes a truncated reply."""


class EpisodeRules:
    """The limits and the rendering of one environment's episodes.

    Reward and success are the environment's. Running out of turns is a failure by the benchmarks' rules (reward 0);
    running out of the token budget is ours and leaves the reward invalid (success False), as do environment errors and
    prefix violations (success None).
    """

    def __init__(self, environment: str, request: CollectionRequest) -> None:
        settings = request.settings
        self._rendering = request.rendering
        self._max_turns = settings.max_turns.get(environment, request.pool.max_turns[environment])
        self._max_new_tokens = settings.max_new_tokens(environment)
        self._max_episode_tokens = settings.max_episode_tokens

    def begin(self, episode: Episode, instructions: str, observation: str | EpisodeFault) -> None:
        """Take the environment's first answer."""
        system_prompt = episode.plan.system_prompt(instructions)
        episode.system_prompt = storable(system_prompt)
        if isinstance(observation, EpisodeFault):
            episode.stop(StopReason.ENVIRONMENT_ERROR)
            return
        text = storable(observation)
        episode.text_replaced = (text, episode.system_prompt) != (observation, system_prompt)
        episode.add_prompt(self._rendering.start(episode.system_prompt, text), text)

    def reply_limit(self, episode: Episode) -> int:
        """Tokens that the next reply may have; below 1 the episode ends here."""
        limit = min(self._max_new_tokens, self._max_episode_tokens - len(episode.token_ids) - END_TOKENS)
        if limit < 1:
            episode.stop(StopReason.EPISODE_TOKEN_LIMIT, success=False)
        return limit

    def take_reply(self, episode: Episode, reply: Generated, limit: int, seen: Sequence[int]) -> str | None:
        """Append a reply; returns the action to execute, None if the episode ends here.

        ``seen``: what the engine says that it was conditioned on and sampled, in order. ModelError if other weights
        sampled it than those that the plan says: a rollout is of one version.
        """
        version, wanted = reply.weight_version, episode.plan.weight_version
        if version is not None and version != wanted:
            raise ModelError(
                f"rollout {episode.plan.rollout_id}: a reply was sampled with version {version} of the weights instead "
                f"of {wanted}; weights may only be handed over between two collections"
            )
        text = self._rendering.decode(reply.token_ids[:-1] if reply.ended else reply.token_ids)
        before = len(episode.token_ids)
        episode.add_reply(reply, text, self._rendering.end_token_id)
        episode.undecodable = self._rendering.undecodable(reply.token_ids)
        if list(seen) != episode.token_ids[: before + len(reply.token_ids)]:
            episode.add_unexecuted_turn()
            episode.stop(StopReason.PREFIX_VIOLATION)
        elif not reply.ended and limit < self._max_new_tokens:
            episode.add_unexecuted_turn()
            episode.stop(StopReason.EPISODE_TOKEN_LIMIT, success=False)
        else:
            return text
        return None

    def take_result(self, episode: Episode, result: StepResult) -> None:
        """Append what the environment answered to an action."""
        result = storable_result(result)
        episode.add_result(result)
        if not episode.live:
            return
        if len(episode.turns) >= self._max_turns:
            episode.stop(StopReason.TURN_LIMIT, reward=0.0, success=False)
        else:
            episode.add_prompt(self._rendering.extend(result.observation), result.observation)


def prompt_tokens(pool: EnvironmentPool, rendering: ChatRendering, tasks: Sequence[Task]) -> dict[str, list[int]]:
    """Tokens of the first prompt of each task, by environment; tasks whose environment fails are left out.

    The pool's slots must be free.
    """
    found: dict[str, list[int]] = {}
    observations = pool.reset_many([(slot, task, task.seed) for slot, task in enumerate(tasks)])
    pool.release(range(len(tasks)))
    for slot, task in enumerate(tasks):
        observation = observations[slot]
        if not isinstance(observation, EpisodeFault):
            ids = rendering.start(storable(pool.system_prompt(task.environment)), storable(observation))
            found.setdefault(task.environment, []).append(len(ids))
    return found


def refuse_long_prompts(tokens: Mapping[str, Sequence[int]], settings: RolloutSettings) -> None:
    """ConfigError naming the environments of which not one of the measured prompts leaves room for a reply."""
    limit = settings.max_episode_tokens
    shortest = {name: min(counts) for name, counts in tokens.items() if min(counts) + END_TOKENS >= limit}
    if shortest:
        needed = max(count + settings.max_new_tokens(name) + END_TOKENS for name, count in shortest.items())
        names = ", ".join(f"{name} (prompt of {count} tokens)" for name, count in shortest.items())
        raise ConfigError(
            f"rollout.max_episode_tokens is {limit}, which leaves no room for a reply in {names}: set it to {needed} "
            "or more for one reply of full length, and higher for several turns"
        )
