"""One chat completion from an OpenAI-compatible server: replicas, attempts, deadlines, limits of size.

Knows HTTP and nothing of rubrics. Every way in which a request can fail is one of the exceptions below. The key goes
into a header only; it is taken out of whatever a server says before that is kept.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_exponential_jitter

from rised.records.text import storable
from rised.records.types import TagStatus
from rised.rubrics.base import RubricError
from rised.rubrics.judge_endpoint import Replica, Replicas, ServerGone
from rised.rubrics.judge_record import JudgeCounters
from rised.rubrics.settings import ChatSettings

CONNECT_S = 10.0
KEEP_ALIVE_S = 2.0
"""Shorter than servers keep an idle connection (uvicorn: 5 s), so that none is closed under a new request."""
KEPT_CHARACTERS = 20_000
"""Of a raw reply, in the records."""
_MISCONFIGURED = {401: "the key is refused", 403: "access is refused", 404: "there is no such route or model"}
_RETRIED = frozenset({408, 409, 425, 429})
FILTER = "content_filter"
"""``finish_reason`` of a reply that was held back; ``error.code`` where the question was (Azure, with status 400)."""


def chat_request(
    settings: ChatSettings, messages: Sequence[Mapping[str, str]], name: str, schema: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of a chat completion that asks for JSON of ``schema``, which the server enforces under ``name`` where
    ``response_format`` says so. ``extra_body`` overrides any key."""
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": messages,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "max_tokens": settings.max_reply_tokens,
    }
    if settings.response_format == "json_schema":
        enforced = {"name": name, "strict": True, "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": enforced}
    return body | settings.extra_body


class Asked(Protocol):
    """Something that a server was asked: how that ended, and why it is no answer."""

    @property
    def status(self) -> TagStatus: ...

    @property
    def reason(self) -> str: ...


def refuse_outage(asked: Sequence[Asked], settings: ChatSettings, who: str, what: str) -> None:
    """RubricError when more was left unanswered than the settings accept: a run whose judge is away would select at
    random for as long as nobody looks. ``who`` and ``what`` name the server and what it was asked about."""
    failed = [one for one in asked if one.status in (TagStatus.TIMEOUT, TagStatus.SERVER_ERROR)]
    if failed and len(failed) > settings.max_failed_share * len(asked):
        raise RubricError(
            f"the {who}'s server left {len(failed)} of {len(asked)} {what} without an answer (first: "
            f"{failed[0].reason}). See to the server ({settings.endpoint}) and start the same command again; "
            "rubrics.judge.max_failed_share says how many are accepted"
        )


class CallFailed(Exception):
    """No completion. ``raw``: what came from the server, as far as it is worth keeping."""

    status = TagStatus.SERVER_ERROR

    def __init__(self, reason: str, raw: str = "") -> None:
        super().__init__(reason)
        self.raw = raw[:KEPT_CHARACTERS]


class TryAgain(CallFailed):
    """Another attempt may succeed. ``wait_s``: what the server asked for (Retry-After)."""

    def __init__(self, reason: str, raw: str = "", wait_s: float | None = None) -> None:
        super().__init__(reason, raw)
        self.wait_s = wait_s


class TooSlow(TryAgain):
    """The deadline passed."""

    status = TagStatus.TIMEOUT


class TooLong(CallFailed):
    """The answer exceeds the limit of bytes."""

    status = TagStatus.PARSE_ERROR


class Refused(CallFailed):
    """The model declined."""

    status = TagStatus.REFUSED


class Filtered(CallFailed):
    """A content filter held back the question or the reply; the same question would meet it again."""

    status = TagStatus.FILTERED


class _NotReached(Exception):
    """Nothing listens there; the request did no harm and costs no attempt."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The text of one reply. Token counts are the server's, None where it gave none."""

    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None


class ChatClient:
    """Requests to one endpoint's replicas. An async context manager; it belongs to one event loop."""

    def __init__(self, settings: ChatSettings, replicas: Replicas, counters: JudgeCounters) -> None:
        self.settings, self.replicas, self.counters = settings, replicas, counters
        self._key = read_key(settings.api_key_env)
        headers = {"Accept-Encoding": "identity"}  # what is limited in size must not be compressed
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            trust_env=settings.use_proxy,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=settings.concurrency, keepalive_expiry=KEEP_ALIVE_S),
        )

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(self, body: Mapping[str, Any]) -> Completion:
        """One completion, after as many attempts as the settings allow. CallFailed says why there is none."""
        content = json.dumps(body).encode()
        attempts = AsyncRetrying(
            stop=stop_after_attempt(self.settings.max_attempts),
            wait=self._pause,
            retry=retry_if_exception_type(TryAgain),
            before_sleep=self._count_retry,
            reraise=True,
        )
        completion: Completion = await attempts(self._attempt, content)
        return completion

    def _pause(self, state: RetryCallState) -> float:
        """What the server asks for, else exponential back-off with jitter; seconds."""
        longest = self.settings.max_backoff_s
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, TryAgain) and error.wait_s is not None:
            return min(error.wait_s, longest)
        first = self.settings.backoff_s
        return float(wait_exponential_jitter(multiplier=first, max=longest, jitter=first)(state))

    def _count_retry(self, state: RetryCallState) -> None:
        self.counters.retries += 1

    async def _attempt(self, content: bytes) -> Completion:
        """One request that reached a server."""
        while True:
            try:
                replica = await self.replicas.lease()
            except ServerGone as error:
                raise CallFailed(str(error)) from None
            try:
                return await self._on(replica, content)
            except _NotReached:
                continue

    async def _on(self, replica: Replica, content: bytes) -> Completion:
        self.counters.calls += 1
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                status, headers, text = await self._post(replica.url, content)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            self.counters.calls -= 1
            self.replicas.failed(replica)
            raise _NotReached from None
        except TimeoutError:
            self.replicas.gave_up(replica)
            raise TooSlow(f"no reply within {self.settings.deadline_s:g} s") from None
        except httpx.HTTPError as error:
            self.replicas.failed(replica)
            raise TryAgain(self._clean(f"the connection broke: {type(error).__name__}: {error}")) from None
        except TooLong:
            self.replicas.answered(replica)
            raise
        except BaseException:
            self.replicas.gave_up(replica)
            raise
        if status >= 500 or (status == 404 and self.replicas.path is not None):
            self.replicas.failed(replica)
        else:
            self.replicas.answered(replica)
        return self._read(replica.url, status, headers, text)

    async def _post(self, url: str, content: bytes) -> tuple[int, httpx.Headers, str]:
        """Status, headers and body; TooLong without having read the rest of a body that is too long."""
        received = bytearray()
        request_headers = {"Content-Type": "application/json"}
        async with self._http.stream(
            "POST", f"{url}/chat/completions", content=content, headers=request_headers
        ) as response:
            async for piece in response.aiter_bytes():
                received += piece
                if len(received) > self.settings.max_reply_bytes:
                    raise TooLong(
                        f"the answer is longer than {self.settings.max_reply_bytes} bytes",
                        self._clean(received[:KEPT_CHARACTERS].decode("utf-8", "replace")),
                    )
            return response.status_code, response.headers, received.decode("utf-8", "replace")

    def _read(self, url: str, status: int, headers: httpx.Headers, text: str) -> Completion:
        if status == 200:
            return self._completion(text)
        said = self._clean(" ".join(text.split())[:500])
        if status == 404 and self.replicas.path is not None:
            # The file may be older than its server's death, and the address somebody else's by now.
            raise TryAgain(f"the server answered 404: {said}", self._clean(text))
        if status in _MISCONFIGURED:
            raise RubricError(
                f"the judge's server {url} answered {status}: {_MISCONFIGURED[status]} ({said}). Check "
                "rubrics.judge.model, endpoint and api_key_env"
            )
        reason = f"the server answered {status}: {said}"
        if _error_code(text) == FILTER:
            raise Filtered(f"filtered: {said}", self._clean(text))
        if status in _RETRIED or status >= 500:
            raise TryAgain(reason, self._clean(text), _seconds(headers.get("Retry-After")))
        raise CallFailed(reason, self._clean(text))

    def _completion(self, text: str) -> Completion:
        try:
            answer = json.loads(text)
            choice = answer["choices"][0]
            finish_reason = choice.get("finish_reason") or ""
            message = (choice.get("message") or {}) if finish_reason == FILTER else choice["message"]
            content, refusal = message.get("content"), message.get("refusal")
            usage = answer.get("usage") or {}
            counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            if _error_code(text) == FILTER:
                raise Filtered("filtered", self._clean(text)) from None
            raise TryAgain("the answer is no chat completion", self._clean(text)) from None
        prompt_tokens, completion_tokens = (value if isinstance(value, int) else None for value in counts)
        self.counters.prompt_tokens += prompt_tokens or 0
        self.counters.completion_tokens += completion_tokens or 0
        if finish_reason == FILTER:
            raise Filtered(f"filtered: finish_reason {FILTER}", self._clean(str(refusal or content or "")))
        if refusal:
            raise Refused(self._clean(f"refused: {refusal}"), self._clean(str(refusal)))
        said = self._clean(content) if isinstance(content, str) else ""
        return Completion(said, str(finish_reason), prompt_tokens, completion_tokens)

    def _clean(self, text: str) -> str:
        return storable(text.replace(self._key, "[key]") if self._key else text)


def read_key(variable: str | None) -> str | None:
    """The key in an environment variable; None if none is named. RubricError if it is named and empty."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise RubricError(f"rubrics.judge.api_key_env names {variable!r}, but that environment variable is not set")
    if not key.isascii() or not key.isprintable():
        raise RubricError(f"the environment variable {variable!r} holds no key: a key is plain text on one line")
    return key


def _error_code(text: str) -> str | None:
    """``error.code`` of a body, None where there is none."""
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _seconds(text: str | None) -> float | None:
    """Retry-After in seconds; None for a date or anything else."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
