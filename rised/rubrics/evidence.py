"""Which part of a rollout may be judged at all: the same for every judge."""

from __future__ import annotations

from dataclasses import replace

from rised.records.types import Rollout, StopReason

INVALID_STOPS = frozenset({StopReason.ENVIRONMENT_ERROR, StopReason.PREFIX_VIOLATION})
"""Ends that are not the policy's doing; such a rollout is no evidence of behaviour."""


def executed(rollout: Rollout) -> Rollout:
    """The rollout without a last turn that the environment never saw (a reply cut by the episode's token budget)."""
    if not rollout.turns or rollout.turns[-1].info.get("executed", True):
        return rollout
    return replace(rollout, turns=rollout.turns[:-1], final_observation=rollout.turns[-1].observation)


def unjudgeable(rollout: Rollout) -> str:
    """Why an executed rollout is no evidence of behaviour; "" when it is."""
    if rollout.stop_reason in INVALID_STOPS:
        return f"invalid rollout: {rollout.stop_reason.value}"
    if not rollout.turns:
        return f"no turn was executed: {rollout.stop_reason.value}"
    return ""
