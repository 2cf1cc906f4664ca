"""A writer for policies too small to write text: rubrics of the vocabulary that the group's rollouts tell apart."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import Literal, Self

from pydantic import model_validator

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup
from rised.methods.bundles.base import BundleWriter, Criterion, Desk, Draft
from rised.methods.registry import piece
from rised.records.types import BundleStatus
from rised.rubrics.tags import valid_states
from rised.rubrics.vocabulary import Polarity, Vocabulary


def vocabulary_criteria(rubric_ids: Iterable[str], vocabulary: Vocabulary) -> tuple[Criterion, ...]:
    """The rubrics as criteria, in vocabulary order; a negative one asks to avoid what it names."""
    ordered = sorted(rubric_ids, key=vocabulary.index)
    words = {Polarity.POSITIVE: "", Polarity.NEGATIVE: "avoid: "}
    return tuple(
        Criterion(f"{words[vocabulary.polarity(i)]}{vocabulary[i].words}: {vocabulary[i].definition}", i)
        for i in ordered
    )


def drawn(pool: Sequence[str], least: int, most: int, *identity: object) -> list[str]:
    """``least`` to ``most`` of the pool, or all of a smaller one, by a generator that ``identity`` seeds."""
    text = "\x1f".join(["rised-bundle", *map(str, identity)])
    rng = random.Random(hashlib.sha256(text.encode()).digest())
    return rng.sample(list(pool), min(rng.randint(least, most), len(pool)))


@piece("bundle_writer", "vocabulary")
class VocabularyWriter(BundleWriter):
    """Each draft: 5 to 8 rubrics, drawn from those whose tags differ among the group's readable rollouts. [ours]

    It stands in for a policy that cannot write: the candidates come from what this group's attempts differ in, without
    rewards, as ORSD's do; their wording is the vocabulary's. A pool of fewer than 5 is taken whole, and an empty one
    gives no bundle.
    """

    needs_tags = True

    class Settings(PieceSettings):
        """How many rubrics."""

        type: Literal["vocabulary"] = strict(
            description="Rubrics of the vocabulary that the group's rollouts tell apart."
        )
        least: int = strict(5, ge=1, description="Fewest criteria of a bundle.")
        most: int = strict(8, ge=1, description="Most criteria of a bundle.")

        @model_validator(mode="after")
        def _bounds(self) -> Self:
            if self.least > self.most:
                raise ValueError(f"least {self.least} exceeds most {self.most}")
            return self

    def drafts(self, groups: Sequence[PromptGroup], count: int, desk: Desk, step: int, seed: int) -> list[list[Draft]]:
        return [[self._draft(group, step, seed, index) for index in range(count)] for group in groups]

    def _draft(self, group: PromptGroup, step: int, seed: int, index: int) -> Draft:
        pool = self.telling(group)
        if not pool:
            return Draft(status=BundleStatus.NO_CRITERIA, reason="the rollouts differ in no rubric")
        chosen = drawn(pool, self.settings.least, self.settings.most, seed, step, group.group_id, index)
        return Draft(vocabulary_criteria(chosen, self.vocabulary))

    def telling(self, group: PromptGroup) -> list[str]:
        """The rubrics whose tags differ between the group's validly tagged rollouts, in vocabulary order."""
        rollout_ids = [rollout.rollout_id for rollout in group.rollouts]
        states = list(valid_states(group.tags, rollout_ids).values())
        rubric_ids = sorted({rubric_id for found in states for rubric_id in found}, key=self.vocabulary.index)
        return [i for i in rubric_ids if len({found[i] for found in states if i in found}) > 1]
