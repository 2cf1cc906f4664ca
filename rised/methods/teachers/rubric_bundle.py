"""ORSD's teacher: the policy's own weights, told a bundle of criteria for the task at hand (METHODS §4)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup, Teacher, TeacherContext
from rised.methods.bundles.alignment import Choice, best_aligned, reward_state, satisfaction, spearman
from rised.methods.bundles.base import Criterion, Desk, Draft, Scored
from rised.methods.bundles.settings import VerifierSettings, WriterSettings
from rised.methods.errors import MethodError
from rised.methods.registry import build, piece, piece_class
from rised.records.types import BundleStatus, CreditState, RubricBundle
from rised.rubrics.blocks import avoid_block, hint_block
from rised.rubrics.vocabulary import Polarity

if TYPE_CHECKING:
    from rised.rubrics.blocks import BlockStyle
    from rised.rubrics.vocabulary import Vocabulary
    from rised.rubrics.windows import TagWindow

TITLE = "Rubric for attempts at this task:"


@piece("teacher", "rubric_bundle")
class RubricBundleTeacher(Teacher):
    """M bundles are written for each selected group; the kept one is read before every rollout of the group.

    ``alignment`` keeps the bundle whose mean scores correlate best (Spearman) with the training rewards [paper].
    Where all valid rewards are equal the correlation is undefined and nothing is asked; where every bundle is
    satisfied alike it is undefined too. Such groups have no teacher, so that their tokens keep the group's
    advantage, and are counted [ours]. ``random`` and ``first`` keep a bundle without regard to scores or rewards.
    """

    class Settings(PieceSettings):
        """Who writes, who verifies, and which bundle is kept."""

        type: Literal["rubric_bundle"] = strict(description="Show the teacher a rubric bundle of the task.")
        writer: WriterSettings = strict(
            {"type": "policy"}, description="Who writes the bundles.", validate_default=True
        )
        verifier: VerifierSettings = strict(
            {"type": "judge"}, description="Who scores them on the rollouts.", validate_default=True
        )
        candidates: int = strict(4, ge=1, description="Bundles written for each group, M.")
        choice: Literal["alignment", "random", "first"] = strict(
            "alignment", description="Which bundle is kept: the best aligned with the rewards, any, or the first."
        )

        @model_validator(mode="after")
        def _choice_has_its_scores(self) -> Self:
            writer, verifier = self.writer.type, self.verifier.type  # type: ignore[attr-defined]
            if self.choice == "alignment" and verifier == "none":
                raise ValueError("choice `alignment` needs scores: name a verifier, or choose `first` or `random`")
            if writer == "policy" and verifier == "tags":
                raise ValueError(
                    "the verifier `tags` scores rubrics of the vocabulary only, and the writer `policy` writes its "
                    "own: use the verifier `judge`, or the writer `vocabulary`"
                )
            return self

    def __init__(self, settings: Any, vocabulary: Vocabulary) -> None:
        super().__init__(settings, vocabulary)
        self.writer = build("bundle_writer", settings.writer, vocabulary=vocabulary)
        self.verifier = build("verifier", settings.verifier, vocabulary=vocabulary)
        self.needs_tags = self.writer.needs_tags or self.verifier.needs_tags
        self.asks_policy = self.writer.asks_policy
        self._kept: dict[str, tuple[Criterion, ...] | None] = {}

    def prompts(self) -> dict[str, str]:
        return self.writer.prompts() | self.verifier.prompts()

    @classmethod
    def asks_judge(cls, settings: Mapping[str, Any]) -> bool:
        for kind, place in (("bundle_writer", "writer"), ("verifier", "verifier")):
            default = cls.Settings.model_fields[place].default
            own = settings.get(place) or default
            if piece_class(kind, own["type"]).asks_judge(own):
                return True
        return False

    def study(self, groups: Sequence[PromptGroup], desk: Desk, step: int, seed: int) -> list[RubricBundle]:
        by_rewards = self.settings.choice == "alignment"
        states = {g.group_id: reward_state(g.valid_rewards) if by_rewards else CreditState.GIVEN for g in groups}
        asked = [group for group in groups if states[group.group_id] is CreditState.GIVEN]
        drafts = self.writer.drafts(asked, self.settings.candidates, desk, step, seed) if asked else []
        by_group = {group.group_id: found for group, found in zip(asked, drafts, strict=True)}
        written = [
            (group, draft)
            for group, found in zip(asked, drafts, strict=True)
            for draft in found
            if draft.status is BundleStatus.OK
        ]
        scores = iter(self.verifier.scored(written, desk) if written else [])
        self._kept = {}
        records = []
        for group in groups:
            found = by_group.get(group.group_id, [Draft(status=BundleStatus.NOT_ASKED)])
            scored = [next(scores) if draft.status is BundleStatus.OK else None for draft in found]
            records += self._settled(group, found, scored, states[group.group_id], step, seed)
        return records

    def _settled(
        self,
        group: PromptGroup,
        drafts: Sequence[Draft],
        scored: Sequence[Scored | None],
        state: CreditState,
        step: int,
        seed: int,
    ) -> list[RubricBundle]:
        rewards = [rollout.reward if rollout.reward_valid else None for rollout in group.rollouts]
        means = [satisfaction(one.scores_GK) if one is not None and one.scores_GK else [] for one in scored]
        alignments = [spearman(own, rewards) if own else None for own in means]
        choice = (
            Choice(None, state)
            if state is not CreditState.GIVEN
            else self._choice(
                group, [one is not None for one in scored], [bool(own) for own in means], alignments, step, seed
            )
        )
        self._kept[group.group_id] = None if choice.index is None else drafts[choice.index].criteria
        records = []
        for index, (draft, one) in enumerate(zip(drafts, scored, strict=True)):
            failed = one is not None and one.status is not BundleStatus.OK
            records.append(
                RubricBundle(
                    step=step,
                    group_id=group.group_id,
                    environment=group.environment,
                    index=index,
                    writer=self.settings.writer.type,
                    verifier=one.verifier if one is not None else "",
                    status=one.status if one is not None and failed else draft.status,
                    reason=one.reason if one is not None and failed else draft.reason,
                    criteria=tuple(criterion.text for criterion in draft.criteria),
                    rubric_ids=tuple(criterion.rubric_id for criterion in draft.criteria),
                    rollout_ids=tuple(rollout.rollout_id for rollout in group.rollouts),
                    scores=one.scores_GK if one is not None else (),
                    satisfaction=tuple(means[index]) or (None,) * len(group.rollouts),
                    alignment=alignments[index],
                    chosen=index == choice.index,
                    group_state=choice.state,
                    reply=draft.reply,
                    verifier_reply=one.reply if one is not None else "",
                )
            )
        return records

    def _choice(
        self,
        group: PromptGroup,
        written: Sequence[bool],
        verified: Sequence[bool],
        alignments: Sequence[float | None],
        step: int,
        seed: int,
    ) -> Choice:
        if self.settings.choice == "alignment":
            return best_aligned(written, verified, alignments)
        usable = [index for index, there in enumerate(written) if there]
        if not usable:
            return Choice(None, CreditState.NO_BUNDLE)
        if self.settings.choice == "first":
            return Choice(usable[0], CreditState.GIVEN)
        identity = f"rised-bundle-choice\x1f{seed}\x1f{step}\x1f{group.group_id}"
        return Choice(random.Random(hashlib.sha256(identity.encode()).digest()).choice(usable), CreditState.GIVEN)

    def contexts(self, group: PromptGroup, window: TagWindow, style: BlockStyle) -> list[TeacherContext | None]:
        if group.group_id not in self._kept:
            raise MethodError(f"group {group.group_id}: its rubric bundles were not studied in this step")
        criteria = self._kept[group.group_id]
        context = None if criteria is None else self._context(criteria, style)
        return [context] * len(group.rollouts)

    def _context(self, criteria: Sequence[Criterion], style: BlockStyle) -> TeacherContext:
        """Rubrics of the vocabulary in the blocks that every teacher uses, other criteria as a numbered list."""
        rubric_ids = [criterion.rubric_id for criterion in criteria]
        if all(rubric_ids):
            sides = {p: [i for i in rubric_ids if self.vocabulary.polarity(i) is p] for p in Polarity}
            blocks = [
                hint_block(sides[Polarity.POSITIVE], self.vocabulary, style),
                avoid_block(sides[Polarity.NEGATIVE], self.vocabulary, style),
            ]
            return TeacherContext("\n".join(block for block in blocks if block), tuple(rubric_ids))
        lines = [f"{number}. {criterion.text}" for number, criterion in enumerate(criteria, 1)]
        return TeacherContext("\n".join([TITLE, *lines]))
