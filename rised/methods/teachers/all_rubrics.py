"""The teacher of the All-Rubric SD baseline: what the group did well and what it did wrong (METHODS §1.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rised.config.settings import strict
from rised.methods.base import PromptGroup, TeacherContext
from rised.methods.registry import piece
from rised.methods.teachers.positive_rubrics import PositiveRubrics
from rised.rubrics.blocks import avoid_block, hint_block
from rised.rubrics.tags import violated_negatives

if TYPE_CHECKING:
    from rised.rubrics.blocks import BlockStyle
    from rised.rubrics.windows import TagWindow


@piece("teacher", "all_rubrics")
class AllRubrics(PositiveRubrics):
    """The hint block of ``positive_rubrics``, then an avoid block of the negative rubrics that the group violated,
    those most violated in the environment's recent window first. Each block holds at most ``max_rubrics`` [ours].

    A group that shows neither carries no distillation token.
    """

    class Settings(PositiveRubrics.Settings):
        """As for ``positive_rubrics``."""

        type: Literal["all_rubrics"] = strict(  # type: ignore[assignment]
            description="Show the teacher the positives and the violated negatives."
        )

    def _context(self, group: PromptGroup, window: TagWindow, style: BlockStyle) -> TeacherContext | None:
        positives = self._positives(group, window)
        rollout_ids = [rollout.rollout_id for rollout in group.rollouts]
        violated = violated_negatives(group.tags, rollout_ids, self.vocabulary)
        violations = window.counts(group.environment).violates
        ranked = sorted(violated, key=lambda rubric_id: (-violations[rubric_id], self.vocabulary.index(rubric_id)))
        negatives = tuple(ranked[: self.settings.max_rubrics])
        blocks = [
            block
            for block in (
                hint_block(positives, self.vocabulary, style),
                avoid_block(negatives, self.vocabulary, style),
            )
            if block
        ]
        return TeacherContext("\n".join(blocks), positives + negatives) if blocks else None
