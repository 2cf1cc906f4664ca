"""The verifier of rubric bundles against a real HTTP server: scores as they came, every failure a status."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_judge_server import ScriptedServer

from rised.methods.verifiers.judge import STATUSES
from rised.records.types import BundleStatus, Rollout, StopReason, TagStatus
from rised.rubrics.base import RubricError
from rised.rubrics.judge_reply import ReplyError
from rised.rubrics.settings import LlmJudgeSettings
from rised.rubrics.verifier_llm import LlmVerifier, Question, attempts_text, read_scores

MakeRollout = Callable[..., Rollout]
PROMPT = "data/prompts/bundle_verifier_v1.md"
CRITERIA = ("Looks before acting.", "Goes to the shelf.")
OK = {"kind": "ok"}


def text(reply: str, finish_reason: str = "stop") -> dict[str, Any]:
    return {"kind": "text", "text": reply, "finish_reason": finish_reason}


@pytest.fixture
def verifier(server: ScriptedServer) -> Callable[..., LlmVerifier]:
    def build(**fields: Any) -> LlmVerifier:
        values: dict[str, Any] = {"model": "test/judge", "endpoint": server.url, "concurrency": 1, "backoff_s": 0.01}
        values |= {"type": "llm", "max_attempts": 2, "wait_for_server_s": 0.3, "max_failed_share": 1.0}
        return LlmVerifier(LlmJudgeSettings(**(values | fields)), PROMPT)

    return build


@pytest.fixture
def question(make_rollout: MakeRollout) -> Question:
    turns = [("You are in a room.", "look"), ("You see a shelf.", "go to shelf 1")]
    rollouts = [make_rollout("alfworld", turns, rollout_id=f"r{i}", final_observation="SCORE 1.0") for i in range(3)]
    return Question(tuple(rollouts), CRITERIA)


def test_every_pair_gets_its_score_in_one_request(
    verifier: Callable[..., LlmVerifier], question: Question, server: ScriptedServer
) -> None:
    one = verifier(seed=3)
    (found,) = one.verify([question])
    assert found.scores_GK == ((0.0, 0.0), (1 / 3, 1 / 3), (2 / 3, 2 / 3)) and found.status is TagStatus.OK
    (request,) = server.requests()
    body = request["body"]
    assert (body["temperature"], body["seed"], body["model"]) == (0.0, 3, "test/judge")
    shown = json.dumps(body["messages"])
    assert "2. Goes to the shelf." in shown and "Attempt 3" in shown and "SCORE" not in shown
    assert one.verifier_id.startswith("verifier:test/judge@main:bundle_verifier_v1-")
    assert one.counters.calls == 1 and one.counters.prompt_tokens == 100


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        (text("I would rather not."), TagStatus.PARSE_ERROR, "no_json"),
        (text('{"scores": [[0, 1], [0, 1]]}'), TagStatus.PARSE_ERROR, "2 lists of scores for 3 attempts"),
        (text('{"scores": [[0, 1], [0], [0, 1]]}'), TagStatus.PARSE_ERROR, "attempt 2 has not 2 scores"),
        (text('{"scores": [[0, 1], [0, 1.5], [0, 1]]}'), TagStatus.PARSE_ERROR, "1.5 lies outside"),
        (text('{"scores": [[0, 1], [0, "1"], [0, 1]]}'), TagStatus.PARSE_ERROR, "is no number"),
        (text('{"scores": [[0, 1], [0, true], [0, 1]]}'), TagStatus.PARSE_ERROR, "is no number"),
        (text('{"scores": [[0, 1], [0, NaN], [0, 1]]}'), TagStatus.PARSE_ERROR, "not_finite"),
        (text('{"scores": [[0, 1', "length"), TagStatus.PARSE_ERROR, "finish_reason_length"),
        ({"kind": "status", "status": 400, "body": "no"}, TagStatus.SERVER_ERROR, "400"),
        ({"kind": "message", "message": {"content": None, "refusal": "no"}}, TagStatus.REFUSED, "refused"),
        (text("", "content_filter"), TagStatus.FILTERED, "content_filter"),
    ],
)
def test_a_failure_is_a_status_and_never_a_score(
    verifier: Callable[..., LlmVerifier],
    question: Question,
    server: ScriptedServer,
    reply: dict[str, Any],
    status: TagStatus,
    reason: str,
) -> None:
    server.script(reply)
    (found,) = verifier(reasks=0).verify([question])
    assert found.status is status and found.scores_GK == () and reason in found.reason


def test_an_unreadable_reply_is_asked_for_again_with_the_reason(
    verifier: Callable[..., LlmVerifier], question: Question, server: ScriptedServer
) -> None:
    server.script(text('{"scores": []}'), OK)
    one = verifier(reasks=1)
    (found,) = one.verify([question])
    assert found.status is TagStatus.OK and one.counters.reasks == 1
    assert "0 lists of scores for 3 attempts" in server.requests()[1]["body"]["messages"][-1]["content"]


def test_a_rollout_that_is_no_evidence_is_not_shown_and_has_an_empty_row(
    verifier: Callable[..., LlmVerifier], question: Question, server: ScriptedServer
) -> None:
    first, broken, last = question.rollouts
    broken = dataclasses.replace(broken, stop_reason=StopReason.ENVIRONMENT_ERROR)
    (found,) = verifier().verify([dataclasses.replace(question, rollouts=(first, broken, last))])
    assert found.scores_GK == ((0.0, 0.0), (), (0.5, 0.5))
    (found,) = verifier().verify([dataclasses.replace(question, rollouts=(broken,))])
    assert found.status is TagStatus.ERROR and len(server.requests()) == 1, "nobody is asked about nothing"


def test_what_was_asked_before_is_known_and_equal_questions_are_asked_once(
    verifier: Callable[..., LlmVerifier], question: Question, server: ScriptedServer, tmp_path: Path
) -> None:
    other = dataclasses.replace(question, criteria=("Waits.", "Looks."))
    one = verifier(cache=str(tmp_path), concurrency=4)
    first = one.verify([question, other, question])
    assert len(server.requests()) == 2 and first[0] == first[2] and one.counters.cached == 1
    again = verifier(cache=str(tmp_path))
    assert again.verify([question, other]) == first[:2]
    assert len(server.requests()) == 2 and again.counters.cached == 2
    assert verifier(cache=str(tmp_path), temperature=0.5).verify([other]) and len(server.requests()) == 3


def test_failures_are_not_kept(
    verifier: Callable[..., LlmVerifier], question: Question, server: ScriptedServer, tmp_path: Path
) -> None:
    server.script(text("no"), OK)
    assert verifier(cache=str(tmp_path), reasks=0).verify([question])[0].status is TagStatus.PARSE_ERROR
    assert verifier(cache=str(tmp_path), reasks=0).verify([question])[0].status is TagStatus.OK


def test_a_filtered_question_is_asked_once_and_is_no_outage(
    verifier: Callable[..., LlmVerifier], question: Question, server: ScriptedServer
) -> None:
    server.script(*[text("", "content_filter")] * 3)
    one = verifier(max_failed_share=0.0)
    (found,) = one.verify([question])
    assert found.status is TagStatus.FILTERED and len(server.requests()) == 1
    assert one.counters.statuses == {TagStatus.FILTERED: 1}
    assert set(STATUSES) == set(TagStatus), "every status has one of a bundle"
    assert STATUSES[found.status] is BundleStatus.VERIFIER_FILTERED


def test_a_server_that_is_away_stops_the_run(
    verifier: Callable[..., LlmVerifier], question: Question, server: ScriptedServer
) -> None:
    server.script({"kind": "status", "status": 400}, OK, OK)
    with pytest.raises(RubricError, match="left 1 of 1 rubric bundles without an answer"):
        verifier(max_failed_share=0.5).verify([question])
    assert verifier().verify([]) == []


def test_without_an_endpoint_or_with_another_prompt_it_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(RubricError, match="rubrics.judge.endpoint is missing"):
        LlmVerifier(LlmJudgeSettings(type="llm", model="m"), PROMPT)
    wrong = tmp_path / "wrong.md"
    wrong.write_text("# System\n\nScore.\n\n# User\n\n{{attempts}}\n\n# Again\n\n{{reason}}\n")
    with pytest.raises(RubricError, match="under `# System` stand the places"):
        LlmVerifier(LlmJudgeSettings(type="llm", model="m", endpoint="http://h/v1"), str(wrong))


def test_attempts_share_the_budget_of_characters(make_rollout: MakeRollout) -> None:
    long = make_rollout("alfworld", [("x" * 3000, "look")] * 12, system_prompt="INSTRUCTIONS")
    shown = attempts_text([long, long], 40_000, 3)
    assert len(shown) <= 41_000 and shown.count("Attempt") == 2 and "left out" in shown
    assert shown.count("INSTRUCTIONS") == 1, "they are the same for all"


def test_thinking_before_the_object_is_passed_over() -> None:
    assert read_scores('<think>hm</think>{"scores": [[1]]}', "stop", 1, 1) == ((1.0,),)
    with pytest.raises(ReplyError, match="nothing else"):
        read_scores('{"scores": [[1]], "note": 1}', "stop", 1, 1)
