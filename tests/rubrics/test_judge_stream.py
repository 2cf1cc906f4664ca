"""Judging while episodes are still played: the tags of judging afterwards, the same failures, no thread left over."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_judge_server import ScriptedServer, free_port, wait_until

from rised.records.types import Rollout, TagStatus
from rised.rubrics import judge_stream
from rised.rubrics.base import RubricError
from rised.rubrics.judge_llm import LlmJudge
from rised.rubrics.judge_rules import RuleJudge
from rised.rubrics.judge_stream import TagStream, packed_s, streaming
from rised.rubrics.vocabulary import Vocabulary

Make = Callable[..., LlmJudge]
OK = {"kind": "ok"}


@pytest.fixture
def rollouts(make_rollout: Callable[..., Rollout]) -> list[Rollout]:
    turns = [("You are in a room. Your task is: find a mug.", "look")]
    return [
        make_rollout("alfworld", [*turns, ("You see a shelf.", f"go to {i}")], rollout_id=f"r{i}") for i in range(8)
    ]


def no_judge_thread() -> bool:
    return all(thread.name != "judge" for thread in threading.enumerate())


def test_tags_and_replies_are_those_of_tagging_afterwards_whatever_came_first(
    make: Make, rollouts: list[Rollout], server: ScriptedServer
) -> None:
    judge = make(concurrency=3)
    expected, record = judge.tag(rollouts), judge.record
    server.script(*[OK | {"after_s": seconds} for seconds in (0.3, 0.0, 0.2, 0.0, 0.1)])
    with TagStream(judge) as stream:
        for rollout in reversed(rollouts):
            stream.add(rollout)
        streamed = stream.finish(rollouts)
    assert judge.conclude(streamed.judgements) == expected
    assert judge.record.replies == record.replies
    for name in ("calls", "prompt_tokens", "completion_tokens", "statuses"):
        assert getattr(streamed.counters, name) == getattr(record.counters, name)
    assert no_judge_thread()


def test_only_what_is_left_at_the_end_is_waited_for(
    make: Make, rollouts: list[Rollout], server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 140.0, 143.0])  # the first rollout, the end of the episodes, the last tag
    monkeypatch.setattr(judge_stream, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with TagStream(make(concurrency=2)) as stream:
        for rollout in rollouts:
            stream.add(rollout)
        wait_until(lambda: len(stream._found) == 8)  # tagged while another episode goes on
        streamed = stream.finish(rollouts)
    assert (streamed.wait_s, streamed.counters.seconds) == (3.0, 43.0)
    assert streamed.after_batch_s == packed_s((j.seconds for j in streamed.judgements), 2)


def test_durations_are_packed_in_order_into_the_places_that_there_are() -> None:
    assert packed_s([3, 1, 1, 1], 2) == 3
    assert packed_s([1, 1, 1, 3], 2) == 4
    assert packed_s([], 2) == 0


def test_a_refused_key_ends_the_collection_at_the_next_rollout(
    make: Make, rollouts: list[Rollout], server: ScriptedServer
) -> None:
    server.script(*[{"kind": "status", "status": 401}] * 9)
    with pytest.raises(RubricError, match="answered 401"), TagStream(make()) as stream:
        for rollout in rollouts:
            stream.add(rollout)
            wait_until(stream._outcome.done)
    assert len(server.requests()) == 1 and no_judge_thread()


def test_a_refused_key_is_raised_at_the_end_at_the_latest(
    make: Make, rollouts: list[Rollout], server: ScriptedServer
) -> None:
    server.script(*[{"kind": "status", "status": 401, "after_s": 0.2}] * 9)
    with pytest.raises(RubricError, match="answered 401"), TagStream(make(concurrency=8)) as stream:
        for rollout in rollouts:
            stream.add(rollout)
        stream.finish(rollouts)
    assert no_judge_thread()


def test_a_server_that_left_too_many_unanswered_stops_the_batch(
    make: Make, rollouts: list[Rollout], server: ScriptedServer
) -> None:
    judge = make(f"http://127.0.0.1:{free_port()}/v1", max_failed_share=0.5)
    with TagStream(judge) as stream:
        for rollout in rollouts:
            stream.add(rollout)
        streamed = stream.finish(rollouts)
    assert {tag.status for j in streamed.judgements for tag in j.tags} == {TagStatus.SERVER_ERROR}
    with pytest.raises(RubricError, match="left 8 of 8 rollouts without an answer"):
        judge.conclude(streamed.judgements)


def test_an_error_elsewhere_cancels_the_requests_in_flight(
    make: Make, rollouts: list[Rollout], server: ScriptedServer
) -> None:
    server.script(*[OK | {"after_s": 60}] * 8)
    with pytest.raises(ZeroDivisionError), TagStream(make(concurrency=8)) as stream:
        for rollout in rollouts:
            stream.add(rollout)
        wait_until(lambda: len(server.requests()) == 8)
        raise ZeroDivisionError
    assert no_judge_thread() and server.state()["in_flight"] == 8, "no reply was waited for"


def test_a_batch_without_rollouts_needs_no_server(make: Make) -> None:
    with TagStream(make(f"http://127.0.0.1:{free_port()}/v1")) as stream:
        assert stream.finish([]).judgements == ()


def test_the_rule_judge_tags_after_the_batch_and_a_model_unless_told_otherwise(
    make: Make, vocabulary: Vocabulary
) -> None:
    assert streaming(RuleJudge(vocabulary)) is None and streaming(make(streaming=False)) is None
    judge = make()
    assert streaming(judge) is judge


INTERRUPTED = """
import signal, sys, time
from rised.rubrics.judge_llm import LlmJudge
from rised.rubrics.judge_stream import TagStream
from rised.rubrics.settings import LlmJudgeSettings
from rised.rubrics.vocabulary import load_vocabulary
sys.path.insert(0, sys.argv[2])
from record_examples import rollout
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGINT, signal.default_int_handler)
judge = LlmJudge(LlmJudgeSettings(type="llm", model="m", endpoint=sys.argv[1], deadline_s=60), load_vocabulary())
rollouts = [rollout(1, i) for i in range(8)]
try:
    with TagStream(judge) as stream:
        for one in rollouts:
            stream.add(one)
        if sys.argv[3] == "playing":
            time.sleep(60)
        stream.finish(rollouts)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "code", "moment"), [(signal.SIGINT, 130, "playing"), (signal.SIGTERM, 7, "waiting")]
)
def test_an_interrupt_ends_the_thread_and_its_requests(
    server: ScriptedServer, repository: Path, number: signal.Signals, code: int, moment: str
) -> None:
    server.script(*[OK | {"after_s": 90}] * 8)
    arguments: list[Any] = [server.url, repository / "tests" / "records", moment]
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED, *map(str, arguments)], cwd=repository)
    wait_until(lambda: len(server.requests()) >= 8)
    child.send_signal(number)
    assert child.wait(timeout=60) == code
