"""From expert transcripts to supervised sequences, some of them under hint and avoid blocks.

The nano policy must be able to read the blocks that teachers and steering write, or a teacher's signal would be noise.
So a share of the demonstrations is shown under a hint block of positive rubrics that the transcript truly
demonstrates, and a share under an avoid block of negative rubrics that it stays clear of. [ours]
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from rised.learner.supervised import SupervisedExample
from rised.models.rendering import ChatRendering
from rised.records.types import Rollout, Tag, TagState, TagStatus
from rised.rubrics.blocks import BlockStyle, avoid_block, hint_block
from rised.rubrics.vocabulary import Polarity, Vocabulary

MAX_HINTS = 8
MAX_AVOIDED = 3


def true_hints(tags: Sequence[Tag], vocabulary: Vocabulary) -> list[str]:
    """Positive rubrics that one rollout's tags say it demonstrates, in vocabulary order."""
    return [
        tag.rubric_id
        for tag in tags
        if tag.state is TagState.DEMONSTRATES and vocabulary.polarity(tag.rubric_id) is Polarity.POSITIVE
    ]


def clear_of(tags: Sequence[Tag], vocabulary: Vocabulary) -> list[str]:
    """Negative rubrics that were judged and are absent from one rollout, in vocabulary order."""
    return [
        tag.rubric_id
        for tag in tags
        if tag.status is TagStatus.OK
        and tag.state is TagState.ABSENT
        and vocabulary.polarity(tag.rubric_id) is Polarity.NEGATIVE
    ]


def render_demonstration(
    rollout: Rollout, rendering: ChatRendering, observation_weight: float, hint: str = "", avoid: str = ""
) -> SupervisedExample:
    """Token ids and loss weights of one transcript; the blocks' tokens weigh 0, the policy's 1."""
    prefix = rendering.hint_prefix(hint) if hint else []
    system = f"{rollout.system_prompt}\n{avoid}" if avoid else rollout.system_prompt
    ids = list(prefix)
    weights = [0.0] * len(prefix)
    for index, turn in enumerate(rollout.turns):
        scaffold = rendering.start(system, turn.observation) if index == 0 else rendering.extend(turn.observation)
        reply = rendering.encode_reply(turn.action_raw)
        ids += [*scaffold, *reply]
        weights += [observation_weight] * len(scaffold) + [1.0] * len(reply)
    return SupervisedExample(ids, weights)


def supervised_examples(
    rollouts: Sequence[Rollout],
    tags: Mapping[str, Sequence[Tag]],
    rendering: ChatRendering,
    vocabulary: Vocabulary,
    style: BlockStyle,
    observation_weight: float,
    hint_share: float,
    avoid_share: float,
    seed: int,
) -> list[SupervisedExample]:
    """One example per rollout, in order; which blocks it is shown under follows from ``seed`` and its place."""
    examples = []
    for place, rollout in enumerate(rollouts):
        rng = random.Random(f"{seed}/{place}/{rollout.rollout_id}")
        hints = true_hints(tags[rollout.rollout_id], vocabulary)
        avoided = clear_of(tags[rollout.rollout_id], vocabulary)
        hint = avoid = ""
        if hints and rng.random() < hint_share:
            chosen = rng.sample(hints, rng.randint(1, min(MAX_HINTS, len(hints))))
            hint = hint_block(chosen, vocabulary, style)
        if avoided and rng.random() < avoid_share:
            chosen = rng.sample(avoided, rng.randint(1, min(MAX_AVOIDED, len(avoided))))
            avoid = avoid_block(chosen, vocabulary, style)
        examples.append(render_demonstration(rollout, rendering, observation_weight, hint, avoid))
    return examples
