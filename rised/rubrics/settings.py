"""Settings of the rubrics room: which vocabulary, which judge, how long the window of recent tags is.

Light on purpose (pydantic only), so that a configuration can be checked without importing a judge.
"""

from __future__ import annotations

from typing import Literal

from rised.config.settings import Settings, strict


class RuleJudgeSettings(Settings):
    """The judge that decides with detectors from the transcript and the environment's log; needs no model."""

    type: Literal["rules"] = strict("rules", description="judge by the detectors of rised.rubrics.detectors")


JudgeSettings = RuleJudgeSettings
"""The judges that a configuration may name, told apart by ``type``."""


class RubricSettings(Settings):
    """Everything that tagging needs."""

    vocabulary: str = strict(
        "data/vocabulary.yaml", description="vocabulary file, relative to the repository root", min_length=1
    )
    judge: JudgeSettings = strict(RuleJudgeSettings(), description="who tags the rollouts")
    window_steps: int = strict(5, description="steps of tags that the recent window keeps per environment", ge=1)
