"""The LLM judge against a real HTTP server on loopback: every kind of failure has its own status, none is absent."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_judge_server import ScriptedServer, free_port, wait_until
from tenacity import RetryCallState

from rised.records.schemas import from_table, to_table
from rised.records.types import Rollout, StopReason, Tag, TagState, TagStatus
from rised.rubrics import judge_llm
from rised.rubrics.base import RubricError
from rised.rubrics.judge_client import ChatClient
from rised.rubrics.judge_llm import LlmJudge, judge_id
from rised.rubrics.profiles import rubric_profile
from rised.rubrics.settings import LlmJudgeSettings
from rised.rubrics.vocabulary import Vocabulary

MakeRollout = Callable[..., Rollout]
OK = {"kind": "ok"}
SLOW = {"kind": "ok", "after_s": 60.0}
TURNS = [("You are in a room. Your task is: find a mug.", "look"), ("You see a shelf.", "go to shelf 1")]


def status(code: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "status", "status": code} | fields


def text(reply: str, finish_reason: str = "stop") -> dict[str, Any]:
    return {"kind": "text", "text": reply, "finish_reason": finish_reason}


def statuses(tags: list[Tag]) -> set[TagStatus]:
    return {tag.status for tag in tags}


def write_endpoint(path: Path, *urls: str, **fields: Any) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps({"urls": urls} | fields))
    os.replace(aside, path)


# ---- verdicts


def test_each_rollout_gets_one_tag_per_applicable_rubric_in_input_and_vocabulary_order(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, vocabulary: Vocabulary
) -> None:
    judge = make(concurrency=4)
    rollouts = [make_rollout(name, TURNS, rollout_id=name) for name in ("dbbench", "alfworld", "webshop")]
    tags = judge.tag(rollouts)
    assert [(tag.rollout_id, tag.rubric_id) for tag in tags] == [
        (name, rubric.id) for name in ("dbbench", "alfworld", "webshop") for rubric in vocabulary.applicable(name)
    ]
    assert statuses(tags) == {TagStatus.OK} and {tag.judge for tag in tags} == {judge.judge_id}
    first = [next(tag for tag in tags if tag.rollout_id == rollout.rollout_id) for rollout in rollouts]
    assert all(tag.state is not TagState.ABSENT and tag.evidence_turn == 0 for tag in first)
    assert {tag.state for tag in tags if tag not in first} == {TagState.ABSENT}
    assert [reply.rollout_id for reply in judge.record.replies] == ["dbbench", "alfworld", "webshop"]


def test_the_request_is_decoded_greedily_under_the_schema_with_the_vocabulary_before_the_transcript(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer, vocabulary: Vocabulary
) -> None:
    judge = make(extra_body={"chat_template_kwargs": {"enable_thinking": False}}, seed=7)
    judge.tag([make_rollout("alfworld", TURNS), make_rollout("alfworld", [("Another room.", "wait")])])
    first, second = (request["body"] for request in server.requests())
    assert (first["model"], first["temperature"], first["seed"]) == ("test/judge", 0.0, 7)
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    entries = first["response_format"]["json_schema"]["schema"]["properties"]["tags"]["prefixItems"]
    rubrics = vocabulary.applicable("alfworld")
    assert len(entries) == len(rubrics)
    system, user = first["messages"]
    assert all(f"- {rubric.id} (" in system["content"] for rubric in rubrics)
    for key_order in (json.loads(json.dumps(entry))["properties"] for one in entries for entry in one["anyOf"]):
        assert list(key_order) == ["id", "evidence_turn", "state"], "as the server reads it"
    example = system["content"][system["content"].index('{"tags": [{"id": ') :]
    assert example.index('"evidence_turn"') < example.index('"state"')
    assert system == second["messages"][0], "the server's prefix cache serves it"
    assert "go to shelf 1" in user["content"] and "go to shelf 1" not in system["content"]


def test_counts_and_raw_replies_are_kept_and_can_be_stored(
    make: Callable[..., LlmJudge],
    make_rollout: MakeRollout,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(1.0)  # read at the beginning and the end of the batch and of each rollout
    monkeypatch.setattr(judge_llm, "time", SimpleNamespace(monotonic=clock.__next__))
    server.script(text("$OK with a lone surrogate \ud800"), status(500), OK, text("no"), text("no"))
    judge = make()
    seen: list[tuple[int, int]] = []
    tags = judge.tag([make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(3)], lambda *n: seen.append(n))
    counters = judge.record.counters
    assert (counters.calls, counters.retries, counters.reasks) == (5, 1, 1)
    assert (counters.prompt_tokens, counters.completion_tokens) == (400, 80)
    assert counters.statuses == {TagStatus.OK: 2, TagStatus.PARSE_ERROR: 1} and counters.seconds == 7.0
    assert sorted(seen) == [(1, 3), (2, 3), (3, 3)]
    replies = judge.record.replies
    assert replies[2].reply == "no" and replies[2].status is TagStatus.PARSE_ERROR
    assert from_table(to_table(replies)) == replies and from_table(to_table(tags)) == tags
    metrics = {metric.name: metric.value for metric in judge.record.metrics(4)}
    assert metrics["judge/rollouts/parse_error"] == 1 and metrics["judge/completion_tokens"] == 80
    assert [timing.unit for timing in judge.record.timings(4, judge.judge_id)] == ["s"]


@pytest.mark.parametrize("stop", [StopReason.ENVIRONMENT_ERROR, StopReason.PREFIX_VIOLATION])
def test_a_rollout_that_is_no_evidence_is_an_error_and_costs_no_request(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer, stop: StopReason
) -> None:
    judge = make()
    tags = judge.tag([make_rollout("alfworld", TURNS, stop_reason=stop), make_rollout("alfworld", [], rollout_id="r1")])
    assert statuses(tags) == {TagStatus.ERROR} and all(tag.state is None for tag in tags)
    assert server.requests() == [] and judge.record.replies == []


def test_a_last_reply_that_the_environment_never_saw_is_not_shown(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer
) -> None:
    rollout = make_rollout("alfworld", [*TURNS, ("It is dark.", "unseen words")])
    cut = replace(rollout.turns[-1], info={"executed": False})
    make().tag([replace(rollout, turns=(*rollout.turns[:-1], cut), stop_reason=StopReason.EPISODE_TOKEN_LIMIT)])
    shown = server.requests()[0]["body"]["messages"][1]["content"]
    assert "unseen words" not in shown and "It is dark." not in shown and "numbered 0 to 1" in shown


# ---- failures


@pytest.mark.parametrize(
    ("behaviour", "expected", "reason"),
    [
        (text("I cannot judge this."), TagStatus.PARSE_ERROR, "no_json"),
        (text('{"tags": [{}'), TagStatus.PARSE_ERROR, "unbalanced"),
        (text('{"tags": [}'), TagStatus.PARSE_ERROR, "invalid_json"),
        (text('{"tags": []}'), TagStatus.PARSE_ERROR, "missing_ids"),
        (text('{"tags": [{"id": "is_polite", "state": "absent"}]}'), TagStatus.PARSE_ERROR, "unknown_id: 'is_polite'"),
        (text('{"tags": [], "tags": []}'), TagStatus.PARSE_ERROR, "duplicate_key: 'tags'"),
        (text('$OK and {"tags": []}'), TagStatus.PARSE_ERROR, "ambiguous"),
        (text('{"tags": [{"id"', "length"), TagStatus.PARSE_ERROR, "finish_reason_length"),
        ({"kind": "message", "message": {"content": None}}, TagStatus.PARSE_ERROR, "no_json: the reply is empty"),
        ({"kind": "message", "message": {"content": None, "refusal": "I won't."}}, TagStatus.REFUSED, "I won't."),
        (text("I will not", "content_filter"), TagStatus.FILTERED, "content_filter"),
        ({"kind": "big", "bytes": 3_000_000}, TagStatus.PARSE_ERROR, "longer than 1000000 bytes"),
        ({"kind": "raw", "body": "<html>busy</html>"}, TagStatus.SERVER_ERROR, "no chat completion"),
        ({"kind": "raw", "body": '{"choices": []}'}, TagStatus.SERVER_ERROR, "no chat completion"),
        ({"kind": "cut"}, TagStatus.SERVER_ERROR, "the connection broke"),
        (SLOW, TagStatus.TIMEOUT, "no reply within 0.5 s"),
        (status(500, body="engine dead"), TagStatus.SERVER_ERROR, "answered 500: engine dead"),
        (status(429, headers={"Retry-After": "0"}), TagStatus.SERVER_ERROR, "answered 429"),
        (status(400, body="maximum context length"), TagStatus.SERVER_ERROR, "answered 400: maximum context length"),
    ],
)
def test_a_failure_is_a_status_of_all_the_rollouts_tags_and_never_absent(
    make: Callable[..., LlmJudge],
    make_rollout: MakeRollout,
    server: ScriptedServer,
    vocabulary: Vocabulary,
    behaviour: dict[str, Any],
    expected: TagStatus,
    reason: str,
) -> None:
    server.script(*[behaviour] * 3)
    judge = make(deadline_s=0.5 if behaviour is SLOW else 60)
    tags = judge.tag([make_rollout("alfworld", TURNS)])
    assert len(tags) == len(vocabulary.applicable("alfworld"))
    assert statuses(tags) == {expected} and {tag.state for tag in tags} == {None}
    assert all(reason in tag.reason for tag in tags), tags[0].reason
    (reply,) = judge.record.replies
    assert reply.status is expected and reason in reply.reason
    assert rubric_profile(tags, ["r0"], vocabulary) is None


FILTERED_QUESTION = {"error": {"code": "content_filter", "message": "The prompt was filtered"}}


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (200, {"choices": [{"index": 0, "finish_reason": "content_filter", "message": {"content": "I"}}]}),
        (200, {"choices": [{"index": 0, "finish_reason": "content_filter"}]}),
        (200, FILTERED_QUESTION),
        (400, FILTERED_QUESTION),
        (200, "21-judge-http-faults/scripts/g_message_null.json"),
    ],
)
def test_what_a_content_filter_holds_back_is_asked_once_and_is_no_outage(
    make: Callable[..., LlmJudge],
    make_rollout: MakeRollout,
    server: ScriptedServer,
    cases_dir: Path,
    code: int,
    body: dict[str, Any] | str,
) -> None:
    if isinstance(body, str):
        body = json.loads((cases_dir / body).read_text())[0]["body"]
    server.script(*[status(code, body=json.dumps(body))] * 8)
    judge = make(max_failed_share=0.0)
    tags = judge.tag([make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(2)])
    assert statuses(tags) == {TagStatus.FILTERED} and {tag.state for tag in tags} == {None}
    assert len(server.requests()) == 2, "one request a rollout"
    metrics = {metric.name: metric.value for metric in judge.record.metrics(1)}
    assert metrics["judge/rollouts/filtered"] == 2 and metrics["judge/rollouts/server_error"] == 0
    assert from_table(to_table(tags)) == tags and from_table(to_table(judge.record.replies)) == judge.record.replies


@pytest.mark.parametrize(
    ("behaviours", "calls"),
    [
        ([status(429, headers={"Retry-After": "0"})], 2),
        ([status(500), status(503)], 3),
        ([{"kind": "cut"}], 2),
        ([SLOW], 2),
        ([{"kind": "raw", "body": "<html>"}], 2),
        ([text("no JSON at first")], 2),
        ([text("```json\n$OK\n```")], 1),
        ([text("<think>{}</think>Sure: $OK Done.")], 1),
        ([text("$OK", "length")], 1),
    ],
)
def test_what_can_be_mended_by_another_attempt_is(
    make: Callable[..., LlmJudge],
    make_rollout: MakeRollout,
    server: ScriptedServer,
    behaviours: list[dict[str, Any]],
    calls: int,
) -> None:
    server.script(*behaviours)
    judge = make(deadline_s=2 if behaviours == [SLOW] else 60)
    assert statuses(judge.tag([make_rollout("alfworld", TURNS)])) == {TagStatus.OK}
    assert len(server.requests()) == judge.record.counters.calls == calls


def test_a_reply_is_asked_for_again_with_the_reason_and_one_cut_by_its_length_is_not(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer
) -> None:
    server.script(text("no"), text('{"tags": []}'), OK)
    judge = make(reasks=2)
    assert statuses(judge.tag([make_rollout("alfworld", TURNS)])) == {TagStatus.OK}
    chats = [request["body"]["messages"] for request in server.requests()]
    assert [len(chat) for chat in chats] == [2, 4, 6] and chats[2][:4] == chats[1], (
        "the server's prefix cache serves it"
    )
    assert chats[2][4] == {"role": "assistant", "content": '{"tags": []}'}
    assert "not accepted (missing_ids: " in chats[2][5]["content"]
    assert judge.record.counters.reasks == 2
    server.script(text('{"tags"', "length"))
    assert statuses(judge.tag([make_rollout("alfworld", TURNS)])) == {TagStatus.PARSE_ERROR}
    assert len(server.requests()) == 1


def test_the_wait_that_the_server_asks_for_is_kept_up_to_the_longest(
    make: Callable[..., LlmJudge],
    make_rollout: MakeRollout,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    pause = ChatClient._pause

    def recorded(client: ChatClient, state: RetryCallState) -> float:
        waits.append(pause(client, state))
        return waits[-1]

    monkeypatch.setattr(ChatClient, "_pause", recorded)
    server.script(status(429, headers={"Retry-After": "0.02"}), status(429, headers={"Retry-After": "3600"}))
    assert statuses(make(max_backoff_s=0.05).tag([make_rollout("alfworld", TURNS)])) == {TagStatus.OK}
    assert waits == [0.02, 0.05]


def test_as_many_requests_as_allowed_are_in_flight(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer
) -> None:
    server.script(*[OK | {"together": 3}] * 3)
    make(concurrency=3).tag([make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(9)])
    assert server.state()["most"] == 3


@pytest.mark.parametrize(("code", "words"), [(401, "key is refused"), (404, "no such route or model")])
def test_a_refused_key_or_model_stops_at_once(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer, code: int, words: str
) -> None:
    server.script(*[status(code, body="unknown")] * 9)
    with pytest.raises(RubricError, match=f"answered {code}: .*{words}.*api_key_env"):
        make(concurrency=2).tag([make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(5)])
    assert len(server.requests()) <= 2


def test_a_batch_that_the_server_left_unanswered_stops_the_stage(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer
) -> None:
    rollouts = [make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(4)]
    server.script(*[status(400)] * 2)
    assert len(statuses(make(max_failed_share=0.5).tag(rollouts))) == 2
    server.script(*[status(400)] * 3)
    judge = make(max_failed_share=0.5)
    with pytest.raises(RubricError, match="left 3 of 4 rollouts without an answer"):
        judge.tag(rollouts)
    assert len(judge.record.replies) == 4


# ---- where the server is


def test_a_server_that_is_never_there_is_an_error_after_one_wait_for_all(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, caplog: pytest.LogCaptureFixture
) -> None:
    judge = make(f"http://127.0.0.1:{free_port()}/v1")
    tags = judge.tag([make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(5)])
    assert statuses(tags) == {TagStatus.SERVER_ERROR} and "could not be reached for 0.3 s" in tags[0].reason
    assert judge.record.counters.calls == 0
    assert caplog.text.count("no judge server can be reached") == 1, "who watches the log knows what is waited for"


def test_a_missing_endpoint_file_is_waited_for(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "judge.json"
    tags = make(path).tag([make_rollout("alfworld", TURNS)])
    assert statuses(tags) == {TagStatus.SERVER_ERROR}
    assert "does not exist" in tags[0].reason and "is the serving job running?" in tags[0].reason
    later = threading.Timer(0.3, write_endpoint, (path, server.url), {"model": "test/judge"})
    later.start()
    assert statuses(make(path, wait_for_server_s=120).tag([make_rollout("alfworld", TURNS)])) == {TagStatus.OK}
    later.join()


def test_a_server_that_comes_back_at_another_port_is_found_through_its_file(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "judge.json"
    write_endpoint(path, f"http://127.0.0.1:{free_port()}/v1")
    judge = make(path, wait_for_server_s=120, rest_s=60)
    later = threading.Timer(0.3, write_endpoint, (path, server.url))
    later.start()
    assert statuses(judge.tag([make_rollout("alfworld", TURNS)])) == {TagStatus.OK}
    later.join()
    with ScriptedServer() as other:
        write_endpoint(path, other.url)
        judge.tag([make_rollout("alfworld", TURNS)])
        assert (len(server.requests()), len(other.requests())) == (1, 1)
        other.script(status(404))
        write_endpoint(path, other.url, server.url)
        assert statuses(judge.tag([make_rollout("alfworld", TURNS)])) == {TagStatus.OK}, "somebody else's server by now"


def test_a_half_written_or_foreign_endpoint_file_is_no_server_yet(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "judge.json"
    path.write_text('{"urls": ["http://127')
    assert statuses(make(path).tag([make_rollout("alfworld", TURNS)])) == {TagStatus.SERVER_ERROR}
    write_endpoint(path, server.url, model="another/model")
    with pytest.raises(RubricError, match="servers of 'another/model', the judge is 'test/judge'"):
        make(path).tag([make_rollout("alfworld", TURNS)])


def test_a_replica_that_dies_is_left_out_and_used_again_when_it_returns(
    make: Callable[..., LlmJudge], make_rollout: MakeRollout, server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "judge.json"
    with ScriptedServer() as mortal:
        write_endpoint(path, mortal.url, server.url)
        judge = make(path, concurrency=4, rest_s=0.2)
        rollouts = [make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(12)]
        mortal.script(OK, {"kind": "die"})
        assert statuses(judge.tag(rollouts)) == {TagStatus.OK}
        mortal.stop()
        server.script()
        assert statuses(judge.tag(rollouts)) == {TagStatus.OK} and len(server.requests()) == 12
        mortal.start()
        server.script(*[OK | {"after_s": 0.05}] * 40)
        time.sleep(0.2)
        assert statuses(judge.tag(rollouts)) == {TagStatus.OK}
        assert mortal.requests() and len(mortal.requests()) + len(server.requests()) == 12


# ---- what must not happen


def test_the_key_is_sent_and_appears_nowhere_else(
    make: Callable[..., LlmJudge],
    make_rollout: MakeRollout,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    caplog.set_level("DEBUG")
    server.script(text("echo sk-secret"), status(400, body="bad key sk-secret"), status(401, body="bad key sk-secret"))
    judge = make(api_key_env="JUDGE_KEY", reasks=0)
    tags = judge.tag([make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(2)])
    records = [*judge.record.replies, *tags, judge.settings, judge.judge_id, vars(judge)]
    with pytest.raises(RubricError) as caught:
        judge.tag([make_rollout("alfworld", TURNS)])
    assert server.requests()[0]["headers"]["authorization"] == "Bearer sk-secret"
    assert "echo [key]" in repr(records)
    assert "sk-secret" not in repr(records) + str(caught.value) + repr(caught.value.__cause__) + caplog.text


def test_a_key_that_is_named_and_not_set_is_refused(
    make: Callable[..., LlmJudge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(RubricError, match="api_key_env names 'JUDGE_KEY'"):
        make(api_key_env="JUDGE_KEY")


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("ftp://host/v1", "no address"),
        ("http://host:99999/v1", "no address"),
        ("http://name:word@host/v1", "holds a user name or password"),
    ],
)
def test_an_unusable_endpoint_is_refused_when_the_judge_is_made(
    make: Callable[..., LlmJudge], endpoint: str, words: str
) -> None:
    with pytest.raises(RubricError, match=words):
        make(endpoint)


def test_a_judge_without_an_endpoint_says_how_to_name_one(vocabulary: Vocabulary) -> None:
    with pytest.raises(RubricError, match=r"rubrics\.judge\.endpoint is missing.*--set"):
        LlmJudge(LlmJudgeSettings(type="llm", model="m"), vocabulary)


INTERRUPTED = """
import signal, sys
from rised.rubrics.judge_llm import LlmJudge
from rised.rubrics.settings import LlmJudgeSettings
from rised.rubrics.vocabulary import load_vocabulary
sys.path.insert(0, sys.argv[2])
from record_examples import rollout
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGINT, signal.default_int_handler)
judge = LlmJudge(LlmJudgeSettings(type="llm", model="m", endpoint=sys.argv[1], deadline_s=60), load_vocabulary())
print("asking", flush=True)
try:
    judge.tag([rollout(1, i) for i in range(8)])
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 7)])
def test_an_interrupt_ends_the_requests_in_flight(
    server: ScriptedServer, repository: Path, number: signal.Signals, code: int
) -> None:
    server.script(*[OK | {"after_s": 90}] * 8)
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, server.url, str(repository / "tests" / "records")], cwd=repository
    )
    wait_until(lambda: len(server.requests()) >= 8)
    child.send_signal(number)
    assert child.wait(timeout=60) == code


# ---- identity, streaming


def test_the_judges_id_follows_what_shapes_a_verdict_and_nothing_operational(vocabulary: Vocabulary) -> None:
    settings = LlmJudgeSettings(type="llm", model="Qwen/Qwen3-32B")
    plain = judge_id(settings, vocabulary, "judge_v1-0a1b2c3d")
    assert plain.startswith("llm:Qwen/Qwen3-32B@main:judge_v1-0a1b2c3d:vocabulary-" + vocabulary.hash[:8])

    def other(**fields: Any) -> str:
        return judge_id(settings.model_copy(update=fields), vocabulary, "judge_v1-0a1b2c3d")

    operational = {"endpoint": "http://h/v1", "concurrency": 1, "max_attempts": 2, "deadline_s": 9, "rest_s": 1}
    assert {other(**{name: value}) for name, value in operational.items()} == {plain}
    shaping = {
        "model": "Qwen/Qwen3-8B",
        "revision": "abc",
        "temperature": 0.5,
        "seed": 1,
        "max_reply_tokens": 100,
        "response_format": "none",
        "extra_body": {"top_k": 1},
        "transcript_characters": 2000,
        "final_turns": 1,
        "reasks": 0,
    }
    ids = {other(**{name: value}) for name, value in shaping.items()}
    assert len(ids | {plain}) == len(shaping) + 1
    newer = Vocabulary(vocabulary.version + 1, vocabulary.environments, vocabulary.skills, vocabulary.rubrics)
    assert (
        judge_id(settings, newer, "judge_v1-0a1b2c3d") != plain != judge_id(settings, vocabulary, "judge_v2-0a1b2c3d")
    )


def test_a_rollout_can_be_judged_the_moment_it_ends(make: Callable[..., LlmJudge], make_rollout: MakeRollout) -> None:
    judge = make()

    async def stream() -> list[Tag]:
        async with judge.session() as session:
            first = await session.judge(make_rollout("alfworld", TURNS, rollout_id="first"))
            second = await session.judge(make_rollout("webshop", TURNS, rollout_id="second"))
            assert first.reply is not None and first.reply.status is TagStatus.OK
            return [*first.tags, *second.tags]

    assert asyncio.run(stream()) == judge.tag(
        [make_rollout("alfworld", TURNS, rollout_id="first"), make_rollout("webshop", TURNS, rollout_id="second")]
    )
