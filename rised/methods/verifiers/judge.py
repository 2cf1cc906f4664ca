"""ORSD's verifier: a frozen language model scores every criterion on every attempt (METHODS §4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup
from rised.methods.bundles.base import Desk, Draft, Scored, Verifier
from rised.methods.registry import piece
from rised.records.types import BundleStatus, TagStatus
from rised.rubrics.prompt_file import read_prompt

if TYPE_CHECKING:
    from rised.rubrics.vocabulary import Vocabulary

STATUSES: dict[TagStatus, BundleStatus] = {
    TagStatus.OK: BundleStatus.OK,
    TagStatus.ERROR: BundleStatus.VERIFIER_ERROR,
    TagStatus.PARSE_ERROR: BundleStatus.VERIFIER_PARSE_ERROR,
    TagStatus.TIMEOUT: BundleStatus.VERIFIER_TIMEOUT,
    TagStatus.SERVER_ERROR: BundleStatus.VERIFIER_SERVER_ERROR,
    TagStatus.REFUSED: BundleStatus.VERIFIER_REFUSED,
    TagStatus.FILTERED: BundleStatus.VERIFIER_FILTERED,
}


@piece("verifier", "judge")
class JudgeVerifier(Verifier):
    """One request for each bundle, with the attempts and the criteria, to the model under ``rubrics.judge``.

    Temperature 0 and JSON only [paper]; the prompt's wording and the form of a reply are ours. A reply without one
    score in [0, 1] for each pair is asked for again and then is an error, never a score.
    """

    class Settings(PieceSettings):
        """How the model is asked; model, decoding and endpoint are those of ``rubrics.judge``."""

        type: Literal["judge"] = strict(description="The judge model scores the criteria on the attempts.")
        prompt: str = strict(
            "data/prompts/bundle_verifier_v1.md",
            min_length=1,
            description="Prompt file, relative to the repository root.",
        )

    def __init__(self, settings: Any, vocabulary: Vocabulary) -> None:
        from rised.rubrics.verifier_llm import PLACES, REQUIRED

        super().__init__(settings, vocabulary)
        self._prompt = read_prompt(settings.prompt, PLACES, REQUIRED, "the verifier's prompt")

    def prompts(self) -> dict[str, str]:
        return {"bundle_verifier": "\n".join(self._prompt.sections.values())}

    @classmethod
    def asks_judge(cls, settings: Mapping[str, Any]) -> bool:
        return True

    def scored(self, drafts: Sequence[tuple[PromptGroup, Draft]], desk: Desk) -> list[Scored]:
        from rised.rubrics.verifier_llm import Question

        questions = [
            Question(group.rollouts, tuple(criterion.text for criterion in draft.criteria)) for group, draft in drafts
        ]
        answers = desk.verify(questions, self.settings.prompt)
        return [
            Scored(answer.scores_GK, desk.verifier_id, STATUSES[answer.status], answer.reason, answer.reply)
            for answer in answers
        ]
