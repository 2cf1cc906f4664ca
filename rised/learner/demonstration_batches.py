"""From expert transcripts to supervised sequences, some of them under hint and avoid blocks.

The nano policy must be able to read the blocks that teachers and steering write, or a teacher's signal would be noise.
So a share of the demonstrations is shown under a hint block of positive rubrics that the transcript truly
demonstrates, and a share under an avoid block of negative rubrics that it stays clear of. [ours]
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from rised.learner.supervised import SupervisedExample
from rised.models.nano.settings import WarmStartSettings
from rised.models.rendering import ChatRendering
from rised.records.types import Rollout, Tag, TagState, TagStatus
from rised.rubrics.blocks import BlockStyle, avoid_block, hint_block
from rised.rubrics.vocabulary import Polarity, Vocabulary

MAX_HINTS = 8
MAX_TELLING = 3
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


def prevalence(tags: Mapping[str, Sequence[Tag]], environment_of: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """(environment, rubric) -> share of the environment's transcripts that demonstrate it. Keys of both: rollout id."""
    shown: Counter[tuple[str, str]] = Counter()
    totals = Counter(environment_of.values())
    for rollout_id, environment in environment_of.items():
        for tag in tags[rollout_id]:
            shown[environment, tag.rubric_id] += tag.state is TagState.DEMONSTRATES
    return {key: count / totals[key[0]] for key, count in shown.items()}


def render_demonstration(
    rollout: Rollout,
    rendering: ChatRendering,
    observation_weight: float,
    hint: str = "",
    avoid: str = "",
    turn_weights: Mapping[int, float] | None = None,
) -> SupervisedExample:
    """Token ids and loss weights of one transcript; the blocks' tokens weigh 0, the policy's 1.

    ``turn_weights``: other weights for the replies of some turns.
    """
    prefix = rendering.hint_prefix(hint) if hint else []
    system = f"{rollout.system_prompt}\n{avoid}" if avoid else rollout.system_prompt
    ids = list(prefix)
    weights = [0.0] * len(prefix)
    for index, turn in enumerate(rollout.turns):
        scaffold = rendering.start(system, turn.observation) if index == 0 else rendering.extend(turn.observation)
        reply = rendering.encode_reply(turn.action_raw)
        ids += [*scaffold, *reply]
        weights += [observation_weight] * len(scaffold) + [(turn_weights or {}).get(index, 1.0)] * len(reply)
    return SupervisedExample(ids, weights)


def supervised_examples(
    rollouts: Sequence[Rollout],
    tags: Mapping[str, Sequence[Tag]],
    rendering: ChatRendering,
    vocabulary: Vocabulary,
    style: BlockStyle,
    settings: WarmStartSettings,
    lesson_index: int,
) -> list[SupervisedExample]:
    """One example per rollout, in order; its blocks follow from the seed, the lesson and its place.

    A share of the hints names one to three telling rubrics (what nearly every transcript of the environment shows
    tells the policy nothing), the others as many as a teacher's can; replies that show a telling one may weigh more.
    """
    lesson = settings.lessons[lesson_index]
    shares = prevalence(tags, {rollout.rollout_id: rollout.environment for rollout in rollouts})
    examples = []
    for place, rollout in enumerate(rollouts):
        rng = random.Random(f"{settings.seed + lesson_index}/{place}/{rollout.rollout_id}")
        mine = tags[rollout.rollout_id]
        hints = true_hints(mine, vocabulary)
        telling = [rubric for rubric in hints if shares[rollout.environment, rubric] <= settings.telling_prevalence]
        avoided = clear_of(mine, vocabulary)
        hint = avoid = ""
        turn_weights: dict[int, float] = {}
        if hints and rng.random() < lesson.hint_share:
            few = bool(telling) and lesson.few_share > 0 and rng.random() < lesson.few_share
            pool, most = (telling, MAX_TELLING) if few else (hints, MAX_HINTS)
            chosen = rng.sample(pool, rng.randint(1, min(most, len(pool))))
            hint = hint_block(chosen, vocabulary, style)
            evidence = [tag.evidence_turn for tag in mine if tag.rubric_id in chosen and tag.rubric_id in telling]
            turn_weights = {turn: lesson.evidence_weight for turn in evidence if turn is not None}
        if avoided and rng.random() < lesson.avoid_share:
            chosen = rng.sample(avoided, rng.randint(1, min(MAX_AVOIDED, len(avoided))))
            avoid = avoid_block(chosen, vocabulary, style)
        examples.append(
            render_demonstration(rollout, rendering, settings.observation_weight, hint, avoid, turn_weights)
        )
    return examples
