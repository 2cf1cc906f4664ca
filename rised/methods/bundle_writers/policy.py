"""ORSD's writer: the current policy itself, from the task and its group's attempts (METHODS §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from rised.config.settings import strict
from rised.methods.base import PieceSettings, PromptGroup
from rised.methods.bundles.base import BundleWriter, Criterion, Desk, Draft
from rised.methods.bundles.replies import UnreadableBundle, read_criteria
from rised.methods.registry import piece
from rised.records.types import BundleStatus
from rised.rubrics.evidence import executed
from rised.rubrics.prompt_file import filled, read_prompt

if TYPE_CHECKING:
    from rised.models.writing import WritingRequest, Written
    from rised.rubrics.vocabulary import Vocabulary

PLACES = {"System": set[str](), "User": {"task", "attempts", "count", "least", "most"}}
REQUIRED = {"User": {"task", "attempts"}}


@piece("bundle_writer", "policy")
class PolicyWriter(BundleWriter):
    """One prompt with the task and all attempts of the group, without rewards; each draft is a sample of its own.

    Temperature 0.3, top-p 0.9, at most 4,096 tokens, 5 to 8 criteria, thinking off [paper]. The prompt's wording, the
    limit of the transcripts and the reading of a reply are ours. The attempts lack what the environment said after
    their last action, where a shop prints the reward [ours].
    """

    asks_policy = True

    class Settings(PieceSettings):
        """How the policy is asked."""

        type: Literal["policy"] = strict(description="The current policy writes from the group's attempts.")
        prompt: str = strict(
            "data/prompts/bundle_writer_v1.md",
            min_length=1,
            description="Prompt file, relative to the repository root.",
        )
        least: int = strict(5, ge=1, description="Fewest criteria of a bundle.")
        most: int = strict(8, ge=1, description="Most criteria of a bundle.")
        temperature: float = strict(0.3, ge=0.0, description="Sampling temperature of the writing.")
        top_p: float = strict(0.9, gt=0.0, le=1.0, description="Share of the probability that is drawn from.")
        max_new_tokens: int = strict(4096, ge=1, description="Longest reply, in tokens.")
        template_arguments: dict[str, str | bool] = strict(
            {}, description="Arguments of the chat template for the writing, e.g. `enable_thinking: false`."
        )
        transcript_characters: int = strict(
            60_000, ge=1_000, description="Characters of all attempts together; longer ones are shortened alike."
        )
        final_turns: int = strict(3, ge=1, description="Last turns of an attempt that are always shown whole.")

        @model_validator(mode="after")
        def _bounds(self) -> Self:
            if self.least > self.most:
                raise ValueError(f"least {self.least} exceeds most {self.most}")
            return self

    def __init__(self, settings: Any, vocabulary: Vocabulary) -> None:
        super().__init__(settings, vocabulary)
        self._prompt = read_prompt(settings.prompt, PLACES, REQUIRED, "the bundle writer's prompt")

    def drafts(self, groups: Sequence[PromptGroup], count: int, desk: Desk, step: int, seed: int) -> list[list[Draft]]:
        requests = [self._request(group, count, step, seed) for group in groups]
        return [[self._draft(one) for one in written] for written in desk.write(requests)]

    def prompts(self) -> dict[str, str]:
        return {"bundle_writer": "\n".join(self._prompt.sections.values())}

    def _request(self, group: PromptGroup, count: int, step: int, seed: int) -> WritingRequest:
        from rised.models.writing import WritingRequest, writing_seed
        from rised.rubrics.verifier_llm import attempts_text

        settings = self.settings
        attempts = [executed(rollout) for rollout in group.rollouts if rollout.turns]
        task = "\n\n".join([group.rollouts[0].system_prompt, attempts[0].turns[0].observation if attempts else ""])
        values = {
            "task": task.strip(),
            "attempts": attempts_text(attempts, settings.transcript_characters, settings.final_turns),
            "count": str(len(attempts)),
            "least": str(settings.least),
            "most": str(settings.most),
        }
        return WritingRequest(
            system=filled(self._prompt.sections["System"], values),
            user=filled(self._prompt.sections["User"], values),
            seeds=tuple(writing_seed(seed, step, group.group_id, index) for index in range(count)),
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            template_arguments=dict(settings.template_arguments),
        )

    def _draft(self, written: Written) -> Draft:
        if not written.fits:
            return Draft(status=BundleStatus.TOO_LONG, reason="the prompt leaves no room for a reply")
        if not written.ended:
            reason = f"cut after {self.settings.max_new_tokens} tokens"
            return Draft(status=BundleStatus.CUT, reason=reason, reply=written.text)
        try:
            criteria = read_criteria(written.text, self.settings.least, self.settings.most)
        except UnreadableBundle as error:
            return Draft(status=BundleStatus.UNREADABLE, reason=str(error), reply=written.text)
        return Draft(tuple(Criterion(text) for text in criteria), reply=written.text)
