"""The verifier of rubric bundles: a language model scores criteria on rollouts, through the judge's client and server.

One request for one bundle: all attempts of the group, all criteria, one number in [0, 1] for each pair (ORSD, METHODS
§4). A failure is a status of the bundle and never a score. What was asked before is answered from the judge's cache.
Which settings shape a reply is the judge's: model, decoding, limits and endpoint stand under ``rubrics.judge``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rised.records.layout import judge_folder
from rised.records.types import Rollout, TagStatus
from rised.rubrics.base import RubricError
from rised.rubrics.evidence import executed, unjudgeable
from rised.rubrics.judge_cache import JudgeCache
from rised.rubrics.judge_client import (
    KEPT_CHARACTERS,
    CallFailed,
    ChatClient,
    Completion,
    chat_request,
    read_key,
    refuse_outage,
)
from rised.rubrics.judge_endpoint import FORM, Replicas
from rised.rubrics.judge_llm import JudgeSession, decoding
from rised.rubrics.judge_record import JudgeCounters
from rised.rubrics.judge_reply import CUT, ReplyError, find_object
from rised.rubrics.judge_transcript import transcript
from rised.rubrics.prompt_file import Messages, PromptFile, asked_again, filled, read_prompt
from rised.rubrics.settings import LlmJudgeSettings

PLACES = {
    "System": {"count", "criteria_count", "criteria", "example"},
    "User": {"count", "criteria_count", "attempts"},
    "Again": {"count", "criteria_count", "reason"},
}
REQUIRED = {"System": {"criteria"}, "User": {"attempts"}, "Again": {"reason"}}


@dataclass(frozen=True, slots=True)
class Question:
    """One bundle and the group that it is scored on."""

    rollouts: tuple[Rollout, ...]
    criteria: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BundleScores:
    """``scores_GK``: one row per rollout, one score in [0, 1] per criterion; an empty row for a rollout that is no
    evidence, no rows at all exactly when ``status`` is not ok. ``reply``: the model's raw text."""

    scores_GK: tuple[tuple[float, ...], ...]
    status: TagStatus = TagStatus.OK
    reason: str = ""
    reply: str = ""


def attempts_text(rollouts: Sequence[Rollout], characters: int, final_turns: int) -> str:
    """The rollouts as numbered transcripts of together about ``characters``, each with an equal share.

    The instructions, which are the same for all, stand in the first only.
    """
    share = characters // max(len(rollouts), 1)
    bare = [replace(r, system_prompt="" if i else r.system_prompt) for i, r in enumerate(rollouts)]
    shown = [transcript(rollout, share, final_turns).text for rollout in bare]
    return "\n\n".join(f"Attempt {number}\n{text}" for number, text in enumerate(shown, 1))


def reply_schema(rollout_count: int, criterion_count: int) -> dict[str, Any]:
    """JSON schema of a reply."""
    row = {
        "type": "array",
        "items": {"type": "number", "minimum": 0, "maximum": 1},
        "minItems": criterion_count,
        "maxItems": criterion_count,
    }
    scores = {"type": "array", "items": row, "minItems": rollout_count, "maxItems": rollout_count}
    return {"type": "object", "properties": {"scores": scores}, "required": ["scores"], "additionalProperties": False}


def read_scores(
    text: str, finish_reason: str, rollout_count: int, criterion_count: int
) -> tuple[tuple[float, ...], ...]:
    """The scores of a reply, shape (G, K); ReplyError says why there are none. Nothing is clipped or filled in."""
    try:
        return _scores(find_object(text, "scores"), rollout_count, criterion_count)
    except ReplyError as error:
        if finish_reason == CUT:
            raise ReplyError("finish_reason_length", f"the reply was cut by its limit of tokens ({error})") from None
        raise


def _scores(found: dict[str, Any], rollout_count: int, criterion_count: int) -> tuple[tuple[float, ...], ...]:
    rows = found["scores"]
    if set(found) != {"scores"} or not isinstance(rows, list):
        raise ReplyError("schema", "the object holds one list under 'scores' and nothing else")
    if len(rows) != rollout_count:
        raise ReplyError("schema", f"{len(rows)} lists of scores for {rollout_count} attempts")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list) or len(row) != criterion_count:
            raise ReplyError("schema", f"attempt {number} has not {criterion_count} scores")
        for value in row:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ReplyError("schema", f"attempt {number}: {json.dumps(value)[:40]} is no number")
            if not 0 <= value <= 1:
                raise ReplyError("schema", f"attempt {number}: {value} lies outside of 0 to 1")
    return tuple(tuple(float(value) for value in row) for row in rows)


class LlmVerifier:
    """Scores bundles. ``counters`` are those of the last call of :meth:`verify`; ``verifier_id`` names model,
    revision, prompt and decoding."""

    def __init__(self, settings: LlmJudgeSettings, prompt: str) -> None:
        """RubricError for a missing endpoint, prompt file or key. No server is asked yet."""
        if not settings.endpoint:
            raise RubricError(f"rubrics.judge.endpoint is missing: {FORM} (--set rubrics.judge.endpoint=...)")
        read_key(settings.api_key_env)
        self.settings = settings
        self.prompt: PromptFile = read_prompt(prompt, PLACES, REQUIRED, "the verifier's prompt")
        asked = {name: value for name, value in decoding(settings).items() if name != "format"}
        digest = _digest(asked).hex()[:8]
        self.verifier_id = (
            f"verifier:{settings.model}@{settings.revision}:{self.prompt.version}:t{settings.temperature:g}-{digest}"
        )
        self._identity = [settings.model, settings.revision, self.prompt.hash, asked]
        self.cache = JudgeCache(Path(settings.cache) / judge_folder(self.verifier_id)) if settings.cache else None
        self._replicas = Replicas(settings.endpoint, settings.model, settings.rest_s, settings.wait_for_server_s)
        self.counters = JudgeCounters()

    def verify(self, questions: Sequence[Question]) -> list[BundleScores]:
        """Scores of each bundle, in order; equal questions are asked once.

        RubricError when the server refuses the key or the model, or left more than ``max_failed_share`` of the bundles
        without an answer.
        """
        self.counters = JudgeCounters()
        started = time.monotonic()
        try:
            found = asyncio.run(self._verify_all(questions)) if questions else []
        finally:
            self.counters.seconds = time.monotonic() - started
        for one in found:
            self.counters.statuses[one.status] += 1
        refuse_outage(found, self.settings, "verifier", "rubric bundles")
        return found

    async def _verify_all(self, questions: Sequence[Question]) -> list[BundleScores]:
        shown = [_evidence(question) for question in questions]
        messages = [self._messages(one) for one in shown]
        keys = [_digest([self._identity, one]) for one in messages]
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        self._replicas.hope_again()
        if self.cache is not None:
            self.cache.refresh()
        free = asyncio.Semaphore(self.settings.concurrency)
        try:
            async with ChatClient(self.settings, self._replicas, self.counters) as client:

                async def ask(place: int) -> BundleScores:
                    async with free:
                        return await self._know_or_ask(client, keys[place], messages[place], shown[place])

                async with JudgeSession.together() as group:
                    asked = {key: group.create_task(ask(place)) for key, place in first.items()}
        finally:
            if self.cache is not None:
                self.cache.flush()
                self.cache.tidy()
        self.counters.cached += len(keys) - len(first)
        return [_spread(asked[key].result(), question) for key, question in zip(keys, questions, strict=True)]

    async def _know_or_ask(self, client: ChatClient, key: bytes, messages: Messages, shown: Question) -> BundleScores:
        known = self.cache.get(key) if self.cache is not None else None
        size = len(shown.rollouts), len(shown.criteria)
        if known is not None:
            with suppress(ReplyError):
                scores = read_scores(known.text, known.finish_reason, *size)
                self.counters.cached += 1
                return BundleScores(scores, reply=known.text[:KEPT_CHARACTERS])
        if not shown.rollouts:
            return BundleScores((), TagStatus.ERROR, "no rollout of the group is evidence of behaviour")
        scores_or_error, completion = await self._ask(client, messages, shown)
        if scores_or_error.status is TagStatus.OK and completion is not None and self.cache is not None:
            self.cache.put(key, completion)
        return scores_or_error

    async def _ask(
        self, client: ChatClient, messages: Messages, shown: Question
    ) -> tuple[BundleScores, Completion | None]:
        """Ask, and again with the reason while the reply is unreadable; one cut by its limit would be cut again."""
        size = len(shown.rollouts), len(shown.criteria)
        for again in range(self.settings.reasks + 1):
            self.counters.reasks += again > 0
            try:
                completion = await client.complete(self._body(messages, *size))
            except CallFailed as error:
                return BundleScores((), error.status, str(error), error.raw), None
            try:
                scores = read_scores(completion.text, completion.finish_reason, *size)
            except ReplyError as error:
                failed = BundleScores((), TagStatus.PARSE_ERROR, str(error), completion.text[:KEPT_CHARACTERS])
                if completion.finish_reason == CUT:
                    break
                said = filled(self.prompt.sections["Again"], _counts(shown) | {"reason": str(error)})
                messages = asked_again(messages, completion.text, said)
                continue
            return BundleScores(scores, reply=completion.text[:KEPT_CHARACTERS]), completion
        return failed, None

    def _messages(self, shown: Question) -> Messages:
        counts = _counts(shown)
        row = [1.0, 0.5, *[0.0] * (len(shown.criteria) - 2)][: len(shown.criteria)]
        system = counts | {
            "criteria": "\n".join(f"{number}. {text}" for number, text in enumerate(shown.criteria, 1)),
            "example": json.dumps({"scores": [row]})[:-2] + ", …]}",
        }
        attempts = attempts_text(shown.rollouts, self.settings.transcript_characters, self.settings.final_turns)
        return [
            {"role": "system", "content": filled(self.prompt.sections["System"], system)},
            {"role": "user", "content": filled(self.prompt.sections["User"], counts | {"attempts": attempts})},
        ]

    def _body(self, messages: Messages, rollout_count: int, criterion_count: int) -> dict[str, Any]:
        return chat_request(self.settings, messages, "bundle_scores", reply_schema(rollout_count, criterion_count))


def _evidence(question: Question) -> Question:
    """The question with the rollouts that are shown, each without a turn that was never executed."""
    seen = [executed(rollout) for rollout in question.rollouts]
    return replace(question, rollouts=tuple(rollout for rollout in seen if not unjudgeable(rollout)))


def _spread(scores: BundleScores, question: Question) -> BundleScores:
    """Scores of the shown rollouts in the places of all."""
    if scores.status is not TagStatus.OK:
        return scores
    rows = iter(scores.scores_GK)
    return replace(scores, scores_GK=tuple(() if unjudgeable(executed(r)) else next(rows) for r in question.rollouts))


def _counts(shown: Question) -> dict[str, str]:
    return {"count": str(len(shown.rollouts)), "criteria_count": str(len(shown.criteria))}


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
