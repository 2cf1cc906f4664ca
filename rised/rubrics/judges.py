"""The registry of judges, keyed by the configuration's ``type``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rised.rubrics.base import Judge, RubricError
from rised.rubrics.judge_llm import LlmJudge
from rised.rubrics.judge_rules import RuleJudge
from rised.rubrics.settings import JudgeSettings
from rised.rubrics.vocabulary import Vocabulary

JudgeFactory = Callable[[Any, Vocabulary], Judge]

JUDGES: dict[str, JudgeFactory] = {"rules": lambda settings, vocabulary: RuleJudge(vocabulary), "llm": LlmJudge}
"""type -> what builds the judge from its settings and the vocabulary."""


def make_judge(settings: JudgeSettings, vocabulary: Vocabulary) -> Judge:
    """The judge that the settings name."""
    try:
        factory = JUDGES[settings.type]
    except KeyError:
        raise RubricError(f"unknown judge type {settings.type!r}; known: {', '.join(sorted(JUDGES))}") from None
    return factory(settings, vocabulary)
