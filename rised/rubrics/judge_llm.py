"""The judge that is a language model behind an OpenAI-compatible server [paper: a Qwen3 model tags every rollout].

One request a rollout, for all rubrics that apply to its environment. A failure is a status of all the rollout's tags,
never an ``absent``. Prompt, transcript, reply, client and endpoint have modules of their own; here they are put
together. ``tag`` is synchronous; :class:`JudgeSession` judges single rollouts from within an event loop.

Temperature 0, one request for all rubrics, whole-reply validation and the one further request for an unreadable reply
are ours.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rised.records.layout import judge_folder
from rised.records.types import JudgeReply, Rollout, Tag, TagStatus
from rised.rubrics.base import ABSENT, Progress, RubricError, Verdict
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
from rised.rubrics.judge_prompt import Messages, load_prompt
from rised.rubrics.judge_record import JudgeRecord
from rised.rubrics.judge_reply import CUT, ReplyError, Verdicts, read_reply, reply_schema
from rised.rubrics.judge_transcript import transcript
from rised.rubrics.settings import LlmJudgeSettings
from rised.rubrics.vocabulary import Rubric, Vocabulary

FORMAT = 2
"""Part of the judge's id; raised when the rendering of a transcript or the schema of a reply changes."""
_REASON_LENGTH = 300
_DECODING = (
    *("temperature", "seed", "max_reply_tokens", "response_format", "extra_body"),
    *("transcript_characters", "final_turns", "reasks"),
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One rollout's tags. ``reply`` is None when nobody was asked, because the rollout is no evidence.

    ``seconds``: from the first request to the last answer, without the wait for a free place. ``key``: of what was
    asked, None without a cache; ``cached``: no request was made, the reply to an equal question being known.
    """

    tags: tuple[Tag, ...]
    reply: JudgeReply | None
    seconds: float = 0.0
    key: bytes | None = None
    cached: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How asking ended; ``verdicts`` exactly when ``status`` is ok."""

    status: TagStatus
    reason: str
    raw: str
    completion: Completion | None = None
    verdicts: Verdicts | None = None
    seconds: float = 0.0
    cached: bool = False


class LlmJudge:
    """Tags every rollout for every rubric that applies to its environment.

    ``record`` holds the raw replies and counters of the last call of ``tag``. A session adds to its counters; its
    replies come with each judgement.
    """

    def __init__(self, settings: LlmJudgeSettings, vocabulary: Vocabulary) -> None:
        """RubricError for a missing endpoint, prompt or key. No server is asked yet."""
        if not settings.endpoint:
            raise RubricError(f"rubrics.judge.endpoint is missing: {FORM} (--set rubrics.judge.endpoint=...)")
        read_key(settings.api_key_env)
        self.settings, self.vocabulary = settings, vocabulary
        self.prompt = load_prompt(settings.prompt)
        self.judge_id = judge_id(settings, vocabulary, self.prompt.version)
        self.record = JudgeRecord()
        self.cache = JudgeCache(Path(settings.cache) / judge_folder(self.judge_id)) if settings.cache else None
        self._identity = [settings.model, settings.revision, self.prompt.hash, vocabulary.hash, decoding(settings)]
        self._replicas = Replicas(settings.endpoint, settings.model, settings.rest_s, settings.wait_for_server_s)
        self._rubrics: dict[str, tuple[Rubric, ...]] = {}

    def rubrics_of(self, environment: str) -> tuple[Rubric, ...]:
        """The rubrics that are asked for in an environment, in vocabulary order. RubricError if there are none."""
        if environment not in self._rubrics:
            self._rubrics[environment] = self.vocabulary.applicable(environment)
            if not self._rubrics[environment]:
                raise RubricError(f"no rubric of the vocabulary applies to environment {environment!r}")
        return self._rubrics[environment]

    def tag(self, rollouts: Sequence[Rollout], progress: Progress | None = None) -> list[Tag]:
        """One tag per rollout and applicable rubric, rollouts in input order, rubrics in vocabulary order.

        RubricError when the server refuses the key or the model, or answered too few of the rollouts; what came is
        in ``record`` all the same.
        """
        self.begin()
        started = time.monotonic()
        try:
            judgements = asyncio.run(self._judge_all(rollouts, progress))
        finally:
            self.record.counters.seconds += time.monotonic() - started
        return self.conclude(judgements)

    def begin(self) -> None:
        """Start a record anew, for the next batch of rollouts."""
        self.record = JudgeRecord()

    def conclude(self, judgements: Sequence[Judgement]) -> list[Tag]:
        """The tags of a batch, its replies put on record. RubricError when the server answered too few rollouts.

        In a run of several processes it is one that concludes, and so keeps the cache tidy.
        """
        if self.cache is not None:
            self.cache.tidy()
        self.record.replies = [judgement.reply for judgement in judgements if judgement.reply is not None]
        refuse_outage(self.record.replies, self.settings, "judge", "rollouts")
        return [tag for judgement in judgements for tag in judgement.tags]

    @asynccontextmanager
    async def session(self) -> AsyncIterator[JudgeSession]:
        """Judge single rollouts, for example each the moment it ends, within the event loop that opens this."""
        self._replicas.hope_again()
        if self.cache is not None:
            self.cache.refresh()
        try:
            async with ChatClient(self.settings, self._replicas, self.record.counters) as client:
                yield JudgeSession(self, client)
        finally:
            if self.cache is not None:
                self.cache.flush()

    def key(self, messages: Messages, turn_count: int) -> bytes:
        """SHA-256 of all that a reply follows from: the judge's identity, whole, and what is asked."""
        return _digest([self._identity, messages, turn_count])

    async def _judge_all(self, rollouts: Sequence[Rollout], progress: Progress | None) -> list[Judgement]:
        done = 0
        async with self.session() as session:

            async def judge(rollout: Rollout) -> Judgement:
                nonlocal done
                judgement = await session.judge(rollout)
                done += 1
                if progress is not None:
                    progress(done, len(rollouts))
                return judgement

            async with session.together() as group:
                tasks = [group.create_task(judge(rollout)) for rollout in rollouts]
        return self.in_order([task.result() for task in tasks])

    def in_order(self, judgements: Sequence[Judgement]) -> list[Judgement]:
        """One process's judgements of a batch; of equal questions all but the first are marked as cached.

        Which of them was really asked is a matter of timing, and no record shall depend on that.
        """
        seen: set[bytes] = set()
        marked = []
        for judgement in judgements:
            if judgement.key is not None and (judgement.cached or judgement.key in seen):
                tags = tuple(replace(tag, cached=True) for tag in judgement.tags)
                judgement = replace(judgement, tags=tags, cached=True)
            elif judgement.key is not None:
                seen.add(judgement.key)
            marked.append(judgement)
        self.record.counters.cached = sum(judgement.cached for judgement in marked)
        return marked


class JudgeSession:
    """The asynchronous core: one rollout in, its tags and the raw reply out."""

    def __init__(self, judge: LlmJudge, client: ChatClient) -> None:
        self._judge, self._client = judge, client
        self._free = asyncio.Semaphore(judge.settings.concurrency)
        self._asked: dict[bytes, asyncio.Future[_Outcome]] = {}

    @staticmethod
    @asynccontextmanager
    async def together() -> AsyncIterator[asyncio.TaskGroup]:
        """Tasks that judge a batch: the first RubricError cancels the others and is raised as it is."""
        try:
            async with asyncio.TaskGroup() as group:
                yield group
        except* RubricError as errors:
            raise errors.exceptions[0] from None

    async def judge(self, rollout: Rollout) -> Judgement:
        """Tags of one rollout. Waits while as many requests are in flight as the settings allow.

        RubricError for an environment without rubrics, and when the server refuses the key or the model.
        """
        rubrics = self._judge.rubrics_of(rollout.environment)
        seen = executed(rollout)
        reason = unjudgeable(seen)
        counters = self._client.counters
        if reason:
            counters.statuses[TagStatus.ERROR] += 1
            return Judgement(self._errors(rollout, rubrics, TagStatus.ERROR, reason), None)
        settings = self._judge.settings
        async with self._free:
            shown = transcript(seen, settings.transcript_characters, settings.final_turns)
            messages = self._judge.prompt.messages(rollout.environment, rubrics, shown.text, len(seen.turns))
            key = self._judge.key(messages, len(seen.turns)) if self._judge.cache is not None else None
            first = key not in self._asked
            asked = self._outcome_of(key)
            if first:
                try:
                    asked.set_result(await self._know_or_ask(key, messages, rubrics, len(seen.turns)))
                except BaseException:
                    asked.cancel()
                    raise
        outcome = await asked
        seconds = outcome.seconds if first else 0.0
        counters.shortened += shown.shortened
        counters.statuses[outcome.status] += 1
        completion = outcome.completion
        reply = JudgeReply(
            rollout_id=rollout.rollout_id,
            judge=self._judge.judge_id,
            status=outcome.status,
            reason=outcome.reason[:_REASON_LENGTH],
            reply=outcome.raw[:KEPT_CHARACTERS],
            finish_reason=completion.finish_reason if completion else "",
            prompt_hash=_hash(messages),
            shortened=shown.shortened,
            prompt_tokens=completion.prompt_tokens if completion else None,
            completion_tokens=completion.completion_tokens if completion else None,
        )
        if outcome.verdicts is None:
            tags = self._errors(rollout, rubrics, outcome.status, outcome.reason)
            return Judgement(tags, reply, seconds, key, outcome.cached)
        counters.dropped_evidence += outcome.verdicts.dropped_evidence
        found = outcome.verdicts.by_rubric
        tags = tuple(self._tag(rollout, rubric, TagStatus.OK, found[rubric.id]) for rubric in rubrics)
        return Judgement(tags, reply, seconds, key, outcome.cached)

    def _outcome_of(self, key: bytes | None) -> asyncio.Future[_Outcome]:
        """What an equal question of this batch comes to; without a cache every rollout is asked about on its own."""
        future = self._asked.get(key) if key is not None else None
        if future is None:
            future = asyncio.get_running_loop().create_future()
            if key is not None:
                self._asked[key] = future
        return future

    async def _know_or_ask(
        self, key: bytes | None, messages: Messages, rubrics: Sequence[Rubric], turn_count: int
    ) -> _Outcome:
        """From the cache, else from the server; a reply that holds verdicts is kept."""
        cache = self._judge.cache
        if cache is None or key is None:
            return await self._timed(messages, rubrics, turn_count)
        known = cache.get(key)
        if known is not None:
            with suppress(ReplyError):
                verdicts = read_reply(known.text, known.finish_reason, rubrics, turn_count)
                return _Outcome(TagStatus.OK, "", known.text, known, verdicts, cached=True)
        outcome = await self._timed(messages, rubrics, turn_count)
        if outcome.status is TagStatus.OK and outcome.completion is not None:
            cache.put(key, outcome.completion)
        return outcome

    async def _timed(self, messages: Messages, rubrics: Sequence[Rubric], turn_count: int) -> _Outcome:
        started = time.monotonic()
        outcome = await self._ask(messages, rubrics, turn_count)
        return replace(outcome, seconds=time.monotonic() - started)

    async def _ask(self, messages: Messages, rubrics: Sequence[Rubric], turn_count: int) -> _Outcome:
        """Ask, and again with the reason while the reply is unreadable; one cut by its limit would be cut again."""
        settings, prompt = self._judge.settings, self._judge.prompt
        for again in range(settings.reasks + 1):
            self._client.counters.reasks += again > 0
            try:
                completion = await self._client.complete(self._body(messages, rubrics, turn_count))
            except CallFailed as error:
                return _Outcome(error.status, str(error), error.raw)
            try:
                verdicts = read_reply(completion.text, completion.finish_reason, rubrics, turn_count)
            except ReplyError as error:
                outcome = _Outcome(TagStatus.PARSE_ERROR, str(error), completion.text, completion)
                if completion.finish_reason == CUT:
                    break
                messages = prompt.asked_again(messages, completion.text, str(error), len(rubrics), turn_count)
                continue
            return _Outcome(TagStatus.OK, "", completion.text, completion, verdicts)
        return outcome

    def _body(self, messages: Messages, rubrics: Sequence[Rubric], turn_count: int) -> dict[str, Any]:
        return chat_request(self._judge.settings, messages, "tags", reply_schema(rubrics, turn_count))

    def _errors(self, rollout: Rollout, rubrics: Sequence[Rubric], status: TagStatus, reason: str) -> tuple[Tag, ...]:
        return tuple(self._tag(rollout, rubric, status, ABSENT, reason) for rubric in rubrics)

    def _tag(self, rollout: Rollout, rubric: Rubric, status: TagStatus, verdict: Verdict, reason: str = "") -> Tag:
        ok = status is TagStatus.OK
        return Tag(
            rollout_id=rollout.rollout_id,
            rubric_id=rubric.id,
            state=verdict.state if ok else None,
            evidence_turn=verdict.evidence_turn if ok else None,
            judge=self._judge.judge_id,
            status=status,
            reason=reason[:_REASON_LENGTH],
        )


def judge_id(settings: LlmJudgeSettings, vocabulary: Vocabulary, prompt_version: str) -> str:
    """Model, revision, prompt, vocabulary and decoding: what a verdict follows from, and nothing operational."""
    return (
        f"llm:{settings.model}@{settings.revision}:{prompt_version}:vocabulary-{vocabulary.hash[:8]}"
        f":t{settings.temperature:g}-s{settings.seed}-{_hash(decoding(settings))[:8]}"
    )


def decoding(settings: LlmJudgeSettings) -> dict[str, Any]:
    """How a reply is asked for and read."""
    return {name: getattr(settings, name) for name in _DECODING} | {"format": FORMAT}


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def _hash(value: Any) -> str:
    return _digest(value).hex()
