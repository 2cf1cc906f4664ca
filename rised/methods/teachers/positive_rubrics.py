"""RISED's teacher: the policy's own weights, told which good behaviours the group showed (METHODS §1.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup, Teacher, TeacherContext
from rised.methods.registry import piece
from rised.methods.rewards import zero_variance
from rised.rubrics.blocks import hint_block
from rised.rubrics.tags import demonstrated_positives

if TYPE_CHECKING:
    from rised.rubrics.blocks import BlockStyle
    from rised.rubrics.windows import TagWindow


@piece("teacher", "positive_rubrics")
class PositiveRubrics(Teacher):
    """One hint block for the whole group: P(g), the positive rubrics that at least one of its rollouts demonstrates,
    ranked by their lift with success in the environment's recent window, then by count.

    Without positives (or outside the scope) the group carries no distillation token. The student's prompt never
    carries the block. [ours where the paper is silent]
    """

    needs_tags = True

    class Settings(PieceSettings):
        """Which rubrics and which groups."""

        type: Literal["positive_rubrics"] = strict(description="Hint at the positive rubrics that the group showed.")
        max_rubrics: int = strict(8, ge=1, description="At most this many rubrics in a block.")
        scope: Literal["all", "zero_variance"] = strict(
            "all", description="All selected groups, or only those whose rewards are all equal."
        )

    def contexts(self, group: PromptGroup, window: TagWindow, style: BlockStyle) -> list[TeacherContext | None]:
        context = self._context(group, window, style) if self._in_scope(group) else None
        return [context] * len(group.rollouts)

    def _in_scope(self, group: PromptGroup) -> bool:
        return self.settings.scope == "all" or zero_variance(group.valid_rewards)

    def _context(self, group: PromptGroup, window: TagWindow, style: BlockStyle) -> TeacherContext | None:
        positives = self._positives(group, window)
        return TeacherContext(hint_block(positives, self.vocabulary, style), positives) if positives else None

    def _positives(self, group: PromptGroup, window: TagWindow) -> tuple[str, ...]:
        rollout_ids = [rollout.rollout_id for rollout in group.rollouts]
        positives = demonstrated_positives(group.tags, rollout_ids, self.vocabulary)
        return window.rank_positives(group.environment, positives, self.vocabulary, self.settings.max_rubrics)
