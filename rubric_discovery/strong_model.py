"""Asking a model: many requests, what each reply must be, and a journal so that nothing is asked twice.

``Model`` is what answers one request: a server (through the judge's chat client), a file of recorded replies, or the
scripted stand-in. A reply counts as a whole or not at all; an unreadable one is asked for again with the reason. What
came is kept at once, so that a step that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rised.config.loader import read_plain
from rised.config.paths import shipped
from rised.records.files import make_folder, sha256_of
from rised.records.types import TagStatus
from rised.rubrics.base import RubricError
from rised.rubrics.judge_client import KEPT_CHARACTERS, CallFailed, ChatClient, Completion, chat_request
from rised.rubrics.judge_endpoint import FORM, Replicas
from rised.rubrics.judge_prompt import Messages
from rised.rubrics.judge_record import JudgeCounters
from rised.rubrics.judge_reply import CUT, ReplyError
from rubric_discovery import scripted_model
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.records import Reply, read_rows, write_rows
from rubric_discovery.settings import RecordedModelSettings, ScriptedModelSettings, ServerModelSettings
from rubric_discovery.work import Work

Value = TypeVar("Value")
Answers = Callable[["Request"], Any]


@dataclass(frozen=True, slots=True)
class Request(Generic[Value]):
    """One question. ``subject`` names it within its step; ``read`` makes the value or raises ReplyError.

    ``again`` continues the chat after a reply that was none, with the reason. ``schema``: JSON schema of the reply,
    ``name`` its name.
    """

    step: str
    subject: str
    messages: Messages
    name: str
    schema: Mapping[str, Any]
    read: Callable[[str, str], Value]
    again: Callable[[Messages, str, str], Messages]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer(Generic[Value]):
    """``value`` is None exactly when the reply's status is not ok."""

    value: Value | None
    reply: Reply


class Model(Protocol):
    """``model_id`` says which model, or which stand-in, its replies come from."""

    model_id: str
    settings: Any

    def opened(self) -> AbstractAsyncContextManager[Callable[[Request[Any], Messages, int], Any]]:
        """Gives the coroutine that answers (request, messages, attempt) with a Completion, or raises CallFailed."""
        ...


class ServerModel:
    """A language model behind an OpenAI-compatible server."""

    def __init__(self, settings: ServerModelSettings) -> None:
        self.settings = settings
        decoding = [settings.temperature, settings.seed, settings.max_reply_tokens, settings.extra_body]
        self.model_id = f"llm:{settings.model}@{settings.revision}:{_hash(decoding)[:8]}"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Callable[[Request[Any], Messages, int], Any]]:
        settings = self.settings
        if not settings.endpoint:
            raise DiscoveryError(
                f"the endpoint of {settings.model} is missing: {FORM} (--set strong_model.endpoint=...)"
            )
        replicas = Replicas(settings.endpoint, settings.model, settings.rest_s, settings.wait_for_server_s)
        async with ChatClient(settings, replicas, JudgeCounters()) as client:

            async def complete(request: Request[Any], messages: Messages, attempt: int) -> Completion:
                return await client.complete(self.body(request, messages))

            yield complete

    def body(self, request: Request[Any], messages: Messages) -> dict[str, Any]:
        """The chat completion that is asked for."""
        seeded = self.settings.model_copy(update={"seed": self.settings.seed + request.seed})
        return chat_request(seeded, messages, request.name, request.schema)


class ScriptedModel:
    """The stand-in of text rules. Its replies are no model's."""

    def __init__(self, settings: ScriptedModelSettings) -> None:
        self.settings = settings
        self.model_id = f"scripted:{sha256_of(Path(scripted_model.__file__))[:12]}"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Callable[[Request[Any], Messages, int], Any]]:
        async def complete(request: Request[Any], messages: Messages, attempt: int) -> Completion:
            return Completion(scripted_model.answer(request.name, messages), "stop", None, None)

        yield complete


class RecordedModel:
    """Replies from a file, by step and subject; several of one subject answer its attempts in order."""

    def __init__(self, settings: RecordedModelSettings) -> None:
        self.settings = settings
        path = shipped(settings.file)
        self.model_id = f"recorded:{path.stem}-{sha256_of(path)[:12]}" if path.is_file() else ""
        self._texts: dict[tuple[str, str], list[str]] = defaultdict(list)
        for step, subject, text in _recorded(path):
            self._texts[step, subject].append(text)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Callable[[Request[Any], Messages, int], Any]]:
        async def complete(request: Request[Any], messages: Messages, attempt: int) -> Completion:
            texts = self._texts.get((request.step, request.subject))
            if not texts:
                raise CallFailed(f"{self.settings.file} holds no reply for {request.step} {request.subject}")
            return Completion(texts[min(attempt, len(texts) - 1)], "stop", None, None)

        yield complete


def _recorded(path: Path) -> list[tuple[str, str, str]]:
    """Step, subject and text of every recorded reply; DiscoveryError for a file that holds none."""
    if not path.is_file():
        raise DiscoveryError(f"there is no file of recorded replies {path}: check strong_model.file")
    if path.suffix == ".parquet":
        return [(row.step, row.subject, row.text) for row in read_rows(path, Reply) if row.status == "ok"]
    rows = read_plain(path)
    try:
        return [
            (str(row["step"]), str(row["subject"]), text if isinstance(text := row["reply"], str) else json.dumps(text))
            for row in rows
        ]
    except (TypeError, KeyError):
        raise DiscoveryError(f"{path}: a list of replies is expected, each with step, subject and reply") from None


MODELS: dict[str, Callable[[Any], Model]] = {
    "server": ServerModel,
    "recorded": RecordedModel,
    "scripted": ScriptedModel,
}
"""type -> what answers."""


def make_model(settings: Any) -> Model:
    """The model that the settings name."""
    return MODELS[settings.type](settings)


def asked_with(model: Any, prompt: str) -> dict[str, str]:
    """Inputs of a step that asks: which model, by its settings, and which prompt file."""
    file = shipped(prompt)
    return {"model": make_model(model).model_id, prompt: sha256_of(file) if file.is_file() else ""}


def ask(work: Work, model: Model, requests: Sequence[Request[Value]]) -> list[Answer[Value]]:
    """Every request's answer, in their order; all replies are written to ``<step>_replies.parquet``.

    DiscoveryError when the server refuses the key or the model, or left too many requests without a reply: the step
    can be started again and asks only what is not answered yet.
    """
    if not requests:
        return []
    journal = Journal(work, requests[0].step, model.model_id)
    try:
        answers = asyncio.run(_ask_all(model, requests, journal))
    except RubricError as error:
        text = str(error).replace("rubrics.judge.", "strong_model.")
        raise DiscoveryError(text.replace("the judge's server", "the model's server")) from None
    finally:
        journal.close()
    unanswered = [a.reply for a in answers if a.reply.status in (TagStatus.TIMEOUT, TagStatus.SERVER_ERROR)]
    if len(unanswered) > model.settings.max_failed_share * len(requests):
        raise DiscoveryError(
            f"{model.model_id} left {len(unanswered)} of {len(requests)} requests of {requests[0].step} unanswered "
            f"(first: {unanswered[0].reason}). See to it and start the same command again: what is answered is kept"
        )
    journal.keep([answer.reply for answer in answers])
    return answers


async def _ask_all(model: Model, requests: Sequence[Request[Value]], journal: Journal) -> list[Answer[Value]]:
    free = asyncio.Semaphore(model.settings.concurrency)
    async with model.opened() as complete:

        async def one(request: Request[Value]) -> Answer[Value]:
            known = journal.found(request)
            if known is not None:
                return known
            async with free:
                answer = await _ask_one(model, complete, request)
            journal.add(answer.reply)
            return answer

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(request)) for request in requests]
        except BaseExceptionGroup as errors:
            said = errors.subgroup(RubricError)
            raise (errors if said is None else said.exceptions[0]) from None
    return [task.result() for task in tasks]


async def _ask_one(model: Model, complete: Any, request: Request[Value]) -> Answer[Value]:
    messages = request.messages
    reply = _reply(model, request, TagStatus.PARSE_ERROR, "", None, "")
    for attempt in range(model.settings.reasks + 1):
        try:
            completion: Completion = await complete(request, messages, attempt)
        except CallFailed as error:
            return Answer(None, _reply(model, request, error.status, str(error), None, error.raw))
        try:
            value = request.read(completion.text, completion.finish_reason)
        except ReplyError as error:
            reply = _reply(model, request, TagStatus.PARSE_ERROR, str(error), completion, completion.text)
            if completion.finish_reason == CUT:
                break
            messages = request.again(messages, completion.text, str(error))
            continue
        return Answer(value, _reply(model, request, TagStatus.OK, "", completion, completion.text))
    return Answer(None, reply)


def _reply(
    model: Model, request: Request[Any], status: TagStatus, reason: str, completion: Completion | None, text: str
) -> Reply:
    return Reply(
        step=request.step,
        subject=request.subject,
        model=model.model_id,
        request_hash=request_hash(model, request),
        status=status.value,
        reason=reason[:300],
        text=text[:KEPT_CHARACTERS],
        finish_reason=completion.finish_reason if completion else "",
        prompt_tokens=completion.prompt_tokens if completion else None,
        completion_tokens=completion.completion_tokens if completion else None,
    )


def request_hash(model: Model, request: Request[Any]) -> str:
    """What a reply follows from: model, messages and schema."""
    return _hash([model.model_id, request.messages, request.schema, request.seed])


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Journal:
    """Replies that a step has already: of its finished table and of a hidden file that grows while it runs.

    Only replies that were read count as answered; a failure is asked for again.
    """

    def __init__(self, work: Work, step: str, model_id: str) -> None:
        self._table = work.path(f"{step}_replies.parquet")
        self._path = work.path(f".{step}_replies.jsonl")
        self._known: dict[str, Reply] = {}
        for reply in [*self._old(), *self._lines()]:
            if reply.status == TagStatus.OK and reply.model == model_id:
                self._known[reply.request_hash] = reply
        self._model_id = model_id
        make_folder(work.folder)
        self._file = self._path.open("a", encoding="utf-8")

    def _old(self) -> list[Reply]:
        try:
            return read_rows(self._table, Reply) if self._table.is_file() else []
        except DiscoveryError:
            return []

    def _lines(self) -> list[Reply]:
        """What a killed step had; a last line that was cut is none."""
        found = []
        if self._path.is_file():
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    found.append(Reply(**json.loads(line)))
                except (ValueError, TypeError):
                    continue
        return found

    def found(self, request: Request[Value]) -> Answer[Value] | None:
        """The answer that a request has already, read again."""
        if not self._known:
            return None
        messages_hash = _hash([self._model_id, request.messages, request.schema, request.seed])
        reply = self._known.get(messages_hash)
        if reply is None:
            return None
        try:
            return Answer(request.read(reply.text, reply.finish_reason), reply)
        except ReplyError:
            return None

    def add(self, reply: Reply) -> None:
        self._file.write(json.dumps(dataclasses.asdict(reply), ensure_ascii=False) + "\n")
        self._file.flush()

    def keep(self, replies: Sequence[Reply]) -> None:
        """Write the table of the whole step; the journal has done its service."""
        write_rows(self._table, Reply, replies)
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()
