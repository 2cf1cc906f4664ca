"""A judge against the rule-based detectors: per rubric and environment, what it finds, misses and invents.

The detectors decide from the environment's own log and are taken for the truth on the rubrics that they cover [ours].
Pure; who tags and what is stored is above. A rollout whose tags have an error of the judge is counted and enters
nothing else, and one whose truth has an error is left out altogether.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rised.records.types import JudgeAudit, Rollout, Tag, TagState
from rised.rubrics.agreement import Estimate, kappa_interval, share
from rised.rubrics.tags import valid_states
from rised.rubrics.vocabulary import Polarity, Vocabulary

ALL_RUBRICS = ""
SHOWN = "shown"
"""The state of the rows over all rubrics: whatever is not absent, in the same state."""


def audit(
    rollouts: Sequence[Rollout],
    truth: Sequence[Tag],
    judged: Sequence[Tag],
    vocabulary: Vocabulary,
    model: str,
    seed: int = 0,
) -> list[JudgeAudit]:
    """Rows per environment: one for all covered rubrics, then one or two a rubric, in vocabulary order.

    Rollouts must have ids of their own; RubricError otherwise, and when tags of several judges are mixed.
    """
    ids = [rollout.rollout_id for rollout in rollouts]
    true_states, judged_states = valid_states(truth, ids), valid_states(judged, ids)
    names = tuple({tag.judge for tag in tags} for tags in (judged, truth))
    judge, detectors = (next(iter(name), "") for name in names)
    rows = []
    for environment in dict.fromkeys(rollout.environment for rollout in rollouts):
        own = [r for r in rollouts if r.environment == environment and r.rollout_id in true_states]
        covered = sorted({name for r in own for name in true_states[r.rollout_id]}, key=vocabulary.index)
        tagged = [r for r in own if set(covered) <= set(judged_states.get(r.rollout_id, {}))]
        head: dict[str, object] = {"environment": environment, "judge": judge, "model": model, "detectors": detectors}
        head |= {"rollouts": len(own), "errors": len(own) - len(tagged)}
        pairs = {
            name: [(judged_states[r.rollout_id][name], true_states[r.rollout_id][name]) for r in tagged]
            for name in covered
        }
        groups = [f"{r.run}/{r.step}/{r.group_id}" for r in tagged]
        rows.append(_pooled(head, pairs, groups, seed))
        for name in covered:
            rows += _of_rubric(head, name, pairs[name], groups, vocabulary.polarity(name), seed)
    return rows


def _of_rubric(
    head: Mapping[str, object],
    name: str,
    pairs: Sequence[tuple[TagState, TagState]],
    groups: Sequence[str],
    polarity: Polarity,
    seed: int,
) -> list[JudgeAudit]:
    kappa = kappa_interval([a for a, _ in pairs], [b for _, b in pairs], groups, seed)
    states = [TagState.VIOLATES] if polarity is Polarity.NEGATIVE else [TagState.DEMONSTRATES, TagState.VIOLATES]
    return [
        _row(head, name, state.value, [(a is state, b is state, a is state and b is state) for a, b in pairs], kappa)
        for state in states
    ]


def _pooled(
    head: Mapping[str, object],
    pairs: Mapping[str, Sequence[tuple[TagState, TagState]]],
    groups: Sequence[str],
    seed: int,
) -> JudgeAudit:
    """All rubrics together: a tag counts as found only in its own state."""
    flat = [pair for values in pairs.values() for pair in values]
    kappa = kappa_interval([a for a, _ in flat], [b for _, b in flat], list(groups) * len(pairs), seed)
    absent = TagState.ABSENT
    shown = [(a is not absent, b is not absent, a is not absent and a is b) for a, b in flat]
    return _row(head, ALL_RUBRICS, SHOWN, shown, kappa)


def _row(
    head: Mapping[str, object], name: str, state: str, shown: Sequence[tuple[bool, bool, bool]], kappa: Estimate
) -> JudgeAudit:
    """``shown``: by the judge, by the detector, by both alike. One shown in two states is both false and missed."""
    both = sum(alike for _, _, alike in shown)
    false_positives = sum(a and not alike for a, _, alike in shown)
    false_negatives = sum(b and not alike for _, b, alike in shown)
    negatives = sum(not a and not b for a, b, _ in shown)
    precision, recall = share(both, both + false_positives), share(both, both + false_negatives)
    if name == ALL_RUBRICS:  # tags of one rollout are not independent, as Wilson's interval has them
        precision, recall = Estimate(precision.value), Estimate(recall.value)
    numbers = {
        f"{key}{bound}": getattr(found, field)
        for key, found in (("precision", precision), ("recall", recall), ("kappa", kappa))
        for bound, field in (("", "value"), ("_low", "low"), ("_high", "high"))
    }
    return JudgeAudit(
        rubric_id=name,
        state=state,
        true_positives=both,
        false_positives=false_positives,
        false_negatives=false_negatives,
        true_negatives=negatives,
        **head,  # type: ignore[arg-type]
        **numbers,
    )
