"""A teacher that read how another attempt at the same task succeeded (METHODS §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup, Teacher, TeacherContext
from rised.methods.registry import piece
from rised.records.types import Rollout

if TYPE_CHECKING:
    from rised.rubrics.blocks import BlockStyle
    from rised.rubrics.windows import TagWindow


@piece("teacher", "sibling_success")
class SiblingSuccess(Teacher):
    """For each rollout the shortest success among the *other* rollouts of its group, by turns, then by index. [ours]

    OPSD's teacher reads a reference solution and SDAR's a retrieved skill [published]; what stands here in their place
    is what every environment of this project has, a sibling's success (SDPO's choice). Without one the rollout carries
    no distillation token. The block style ``compact`` tells the actions on one line, ``full`` the observations too.
    """

    class Settings(PieceSettings):
        """How much of the attempt is told."""

        type: Literal["sibling_success"] = strict(description="Show the teacher another rollout's success.")
        max_characters: int = strict(
            20_000, ge=1, description="A longer attempt is told by its actions alone, its last ones if need be."
        )

    def contexts(self, group: PromptGroup, window: TagWindow, style: BlockStyle) -> list[TeacherContext | None]:
        successes = sorted(
            (r for r in group.rollouts if r.reward_valid and r.success and r.turns),
            key=lambda rollout: (len(rollout.turns), rollout.rollout_index),
        )
        shown = {rollout.rollout_id: self._text(rollout, style) for rollout in successes[:2]}
        contexts: list[TeacherContext | None] = []
        for rollout in group.rollouts:
            texts = [text for rollout_id, text in shown.items() if rollout_id != rollout.rollout_id]
            contexts.append(TeacherContext(texts[0]) if texts else None)
        return contexts

    def _text(self, rollout: Rollout, style: BlockStyle) -> str:
        if style == "full":
            told = "\n".join(
                [
                    "Another attempt at this task, which succeeded:",
                    *(f"Observation: {turn.observation}\nAction: {turn.action_mapped}" for turn in rollout.turns),
                ]
            )
            if len(told) <= self.settings.max_characters:
                return told
        actions = [turn.action_mapped.strip() for turn in rollout.turns]
        while len(actions) > 1 and len("; ".join(actions)) > self.settings.max_characters:
            actions = actions[1:]
        return "example: " + "; ".join(actions)
