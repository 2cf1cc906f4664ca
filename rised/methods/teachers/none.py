"""No teacher: plain GRPO and the variance baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup, Teacher, TeacherContext
from rised.methods.registry import piece

if TYPE_CHECKING:
    from rised.rubrics.blocks import BlockStyle
    from rised.rubrics.windows import TagWindow


@piece("teacher", "none")
class NoTeacher(Teacher):
    """No rollout carries a distillation token."""

    class Settings(PieceSettings):
        """No settings."""

        type: Literal["none"] = strict(description="No teacher pass.")

    def contexts(self, group: PromptGroup, window: TagWindow, style: BlockStyle) -> list[TeacherContext | None]:
        return [None] * len(group.rollouts)
