"""The advantage of ORSD: the group's, plus what a teacher with privileged text makes of each token (METHODS §4)."""

from __future__ import annotations

from typing import Literal

from rised.config.settings import strict
from rised.methods.advantages.group_normalised import GroupNormalised
from rised.methods.registry import piece


@piece("advantage", "teacher_shaped")
class TeacherShaped(GroupNormalised):
    """A_t = A_group + α · e_t · (T_t − S_t), T and S by the weights that are about to be updated, without gradient.

    No normalisation of the difference (ORSD, equation 9). e_t is 1 where the rollout has a teacher and both values are
    finite; elsewhere the token keeps the group's advantage. What the teacher reads is the teacher's; the learner adds
    the difference, since only it has both values (``gap_weight``).
    """

    shaped_by_teacher = True

    class Settings(GroupNormalised.Settings):
        """The group advantage, and the weight of the correction."""

        type: Literal["teacher_shaped"] = strict(  # type: ignore[assignment]
            description="Group advantage plus α times the teacher's log-probability gap."
        )
        alpha: float = strict(0.01, gt=0.0, description="α, in advantage per nat (ORSD: 0.01).")

    @property
    def gap_weight(self) -> float:
        return float(self.settings.alpha)
