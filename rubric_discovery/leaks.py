"""Answers of single tasks in the words of a candidate: a rubric that holds one would tell it to the policy.

A task's solution is what its successful rollouts did. Its telling tokens are those that its first observation does
not state itself [ours]: identifiers (four characters and more, a digit among them) of any action, and, where no other
task's transcripts hold them, numbers of any action and words of the final one. Name and definition are searched, since
these reach prompts; examples do not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rised.records.types import Rollout
from rubric_discovery.records import Candidate

_TOKEN = re.compile(r"[a-z0-9]{2,}")


def tokens(text: str) -> set[str]:
    """Lower-case words and numbers of two characters and more."""
    return set(_TOKEN.findall(text.lower().replace("_", " ")))


def solution_tokens(rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Telling token -> the task whose solution it belongs to."""
    seen_in: dict[str, set[str]] = defaultdict(set)
    solutions: dict[str, set[str]] = defaultdict(set)
    for rollout in rollouts:
        task = f"{rollout.environment}:{rollout.task_id}"
        stated = tokens(rollout.turns[0].observation) if rollout.turns else set()
        for turn in rollout.turns:
            for token in tokens(turn.observation) | tokens(turn.action_raw) | tokens(turn.action_mapped):
                seen_in[token].add(task)
        if rollout.success and rollout.turns:
            acted = {t for turn in rollout.turns for t in tokens(turn.action_mapped) if any(c.isdigit() for c in t)}
            solutions[task] |= (acted | tokens(rollout.turns[-1].action_mapped)) - stated
    return {
        token: task
        for task, found in sorted(solutions.items())
        for token in found
        if seen_in[token] == {task} or _is_identifier(token)
    }


def _is_identifier(token: str) -> bool:
    return len(token) >= 4 and any(c.isdigit() for c in token)


def leak(candidate: Candidate, telling: Mapping[str, str]) -> str:
    """The first telling token in a candidate's name or definition; "" when there is none."""
    return next(iter(sorted(tokens(f"{candidate.rubric_id} {candidate.definition}") & set(telling))), "")
