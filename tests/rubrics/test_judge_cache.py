"""The judge's cache: no second request for an equal question, whoever asks, whoever is killed, whatever lies there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scripted_judge_server import ScriptedServer, free_port

import rised.rubrics.judge_cache as judge_cache
from rised.records.types import Rollout, StopReason, Tag, TagStatus
from rised.rubrics.judge_cache import KEY_BYTES, JudgeCache
from rised.rubrics.judge_client import Completion
from rised.rubrics.judge_llm import LlmJudge
from rised.rubrics.judge_stream import TagStream
from rised.rubrics.vocabulary import Vocabulary
from stages.retag import asked_anew

Make = Callable[..., LlmJudge]
TURNS = [("You are in a room. Your task is: find a mug.", "look"), ("You see a shelf.", "go to shelf 1")]


def text(reply: str, finish_reason: str = "stop") -> dict[str, Any]:
    return {"kind": "text", "text": reply, "finish_reason": finish_reason}


@pytest.fixture
def rollouts(make_rollout: Callable[..., Rollout]) -> list[Rollout]:
    return [make_rollout("alfworld", [*TURNS, ("A shelf.", f"take {i}")], rollout_id=f"r{i}") for i in range(6)]


def uncached(tags: list[Tag]) -> list[Tag]:
    return [replace(tag, cached=False) for tag in tags]


def stream(judge: LlmJudge, rollouts: list[Rollout]) -> list[Tag]:
    with TagStream(judge) as opened:
        for rollout in rollouts:
            opened.add(rollout)
        return judge.conclude(opened.finish(rollouts).judgements)


# ---- as part of a judge


@pytest.mark.parametrize("again", [LlmJudge.tag, stream])
def test_a_second_run_over_the_same_rollouts_makes_no_call(
    make: Make, rollouts: list[Rollout], server: ScriptedServer, tmp_path: Path, again: Any
) -> None:
    first = make(cache=str(tmp_path))
    tags = first.tag(rollouts)
    assert not any(tag.cached for tag in tags) and len(server.requests()) == 6
    second = make(f"http://127.0.0.1:{free_port()}/v1", cache=str(tmp_path))
    found = again(second, rollouts)
    assert all(tag.cached for tag in found) and uncached(found) == tags
    assert second.record.replies == first.record.replies, "the records tell the same"
    metrics = {metric.name: metric.value for metric in second.record.metrics(1)}
    assert (metrics["judge/calls"], metrics["judge/cached"], metrics["judge/prompt_tokens"]) == (0, 6, 0)
    assert metrics["judge/rollouts/ok"] == 6


def test_an_equal_transcript_of_the_same_batch_is_asked_about_once_and_the_first_is_not_marked(
    make: Make, make_rollout: Callable[..., Rollout], server: ScriptedServer, tmp_path: Path
) -> None:
    same = [make_rollout("alfworld", TURNS, rollout_id=f"r{i}") for i in range(4)]
    server.script(text("nonsense"), *[{"kind": "ok", "after_s": 0.2}] * 9)
    for order in (same, list(reversed(same))):
        judge = make(cache=str(tmp_path / order[0].rollout_id), concurrency=4)
        with TagStream(judge) as opened:
            for rollout in order:
                opened.add(rollout)
            tags = judge.conclude(opened.finish(same).judgements)
        assert {tag.rollout_id for tag in tags if not tag.cached} == {"r0"}, "whichever came first"
        assert judge.record.counters.cached == 3 and len({tag.status for tag in tags}) == 1
    assert len(server.requests()) == 3, "two for the batch whose first reply was none, one for the other"
    make(concurrency=4).tag(same)
    assert len(server.requests()) == 7, "without a cache each is asked about"


@pytest.mark.parametrize(
    "bad",
    [text("no"), text('{"tags"', "length"), {"kind": "status", "status": 400}, {"kind": "message", "message": {}}],
)
def test_only_verdicts_are_kept(
    make: Make, rollouts: list[Rollout], server: ScriptedServer, tmp_path: Path, bad: dict[str, Any]
) -> None:
    server.script(bad)
    judge = make(cache=str(tmp_path), reasks=0)
    assert {tag.status for tag in judge.tag(rollouts[:1])} != {TagStatus.OK}
    tags = judge.tag(rollouts[:1])
    assert {(tag.status, tag.cached) for tag in tags} == {(TagStatus.OK, False)}
    assert {tag.cached for tag in judge.tag(rollouts[:1])} == {True}


def test_the_verdict_of_a_further_request_is_kept_under_the_question(
    make: Make, rollouts: list[Rollout], server: ScriptedServer, tmp_path: Path
) -> None:
    server.script(text("no"))
    judge = make(cache=str(tmp_path))
    tags = judge.tag(rollouts[:1])
    assert uncached(judge.tag(rollouts[:1])) == tags and len(server.requests()) == 2


def test_whatever_shapes_a_verdict_is_in_the_key_and_nothing_else(
    make: Make, rollouts: list[Rollout], server: ScriptedServer, tmp_path: Path, vocabulary: Vocabulary
) -> None:
    cache = str(tmp_path)
    make(cache=cache).tag(rollouts[:1])
    same = replace(rollouts[0], rollout_id="another", step=7, seed=3, reward=1.0, success=True, run="other")
    same = replace(same, final_observation="Your score (min 0.0, max 1.0) [SEP] 1.0")
    assert make(cache=cache, concurrency=9, deadline_s=3).tag([same])[0].cached
    others = [
        {"model": "test/other"},
        {"revision": "abc"},
        {"temperature": 0.5},
        {"seed": 1},
        {"extra_body": {"top_k": 1}},
        {"reasks": 0},
    ]
    for fields in others:
        assert not make(cache=cache, **fields).tag(rollouts[:1])[0].cached, fields
    changed = [
        replace(rollouts[0], stop_reason=StopReason.TURN_LIMIT),
        replace(rollouts[0], system_prompt="Avoid haste."),
    ]
    assert not any(tag.cached for tag in make(cache=cache).tag(changed))


def test_a_second_pass_for_the_taggers_reproducibility_asks_anew(
    make: Make, rollouts: list[Rollout], server: ScriptedServer, tmp_path: Path
) -> None:
    judge = make(cache=str(tmp_path))
    judge.tag(rollouts)
    second = make(**{"cache": asked_anew(judge.settings).cache})
    assert not any(tag.cached for tag in second.tag(rollouts))
    assert len(server.requests()) == 12 and second.judge_id == judge.judge_id


ONE_PROCESS = """
import sys
from dataclasses import replace
from rised.rubrics.judge_llm import LlmJudge
from rised.rubrics.settings import LlmJudgeSettings
from rised.rubrics.vocabulary import load_vocabulary
sys.path.insert(0, sys.argv[3])
from record_examples import rollout
settings = LlmJudgeSettings(type="llm", model="m", endpoint=sys.argv[1], cache=sys.argv[2], concurrency=4)
judge = LlmJudge(settings, load_vocabulary())
judge.tag([replace(rollout(1, i), system_prompt=f"room {i}") for i in range(24)])
print(judge.record.counters.calls, judge.record.counters.cached)
"""


def test_two_processes_at_once_keep_everything_and_find_everything(
    server: ScriptedServer, repository: Path, tmp_path: Path
) -> None:
    server.script(*[{"kind": "ok", "after_s": 0.05}] * 48)
    words = [sys.executable, "-c", ONE_PROCESS, server.url, str(tmp_path), str(repository / "tests" / "records")]

    def two() -> list[list[int]]:
        children = [subprocess.Popen(words, cwd=repository, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        outputs = [child.communicate(timeout=200)[0] for child in children]
        assert [child.returncode for child in children] == [0, 0]
        return [[int(word) for word in output.split()] for output in outputs]

    assert all(sum(counts) == 24 for counts in two())
    asked = len(server.requests())
    assert 24 <= asked <= 48
    assert two() == [[0, 24]] * 2 and len(server.requests()) == asked


# ---- on its own


def key(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"k" * (KEY_BYTES - 8)


def reply(number: int) -> Completion:
    return Completion(f"reply {number}", "stop", number, None)


def filled(folder: Path, numbers: range) -> None:
    cache = JudgeCache(folder)
    for number in numbers:
        cache.put(key(number), reply(number))
    cache.flush()


def reopened(folder: Path) -> JudgeCache:
    cache = JudgeCache(folder)
    cache.refresh()
    return cache


def test_what_was_put_is_found_and_keys_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    twin = key(3)[:8] + b"t" * (KEY_BYTES - 8)
    cache = JudgeCache(tmp_path / "deep" / "folder")
    cache.put(twin, reply(99))
    cache.flush()
    filled(cache.folder, range(3000))
    found = reopened(cache.folder)
    assert [found.get(key(number)) for number in (0, 3, 2999)] == [reply(0), reply(3), reply(2999)]
    assert found.get(twin) == reply(99) and found.get(key(3000)) is None
    assert JudgeCache(tmp_path / "nowhere").get(key(0)) is None


def test_hits_are_of_what_was_there_when_the_batch_began(tmp_path: Path) -> None:
    cache = reopened(tmp_path)
    filled(tmp_path, range(2))
    assert cache.get(key(1)) is None
    cache.refresh()
    assert cache.get(key(1)) == reply(1)


def test_many_small_files_become_one_and_a_reader_of_the_old_ones_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_cache, "MERGE_AT", 8)
    for start in range(0, 80, 10):
        filled(tmp_path, range(start, start + 12))
    reader = reopened(tmp_path)
    JudgeCache(tmp_path).tidy()
    (part,) = tmp_path.iterdir()
    assert pq.read_metadata(part).num_rows == 82, "no key stands twice"
    assert [reader.get(key(number)) for number in range(82)] == [reply(number) for number in range(82)]


@pytest.mark.parametrize("reading", [1, 4])
def test_two_that_tidy_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: int) -> None:
    """The other one takes the files away after this one has read the first of them, or all."""
    monkeypatch.setattr(judge_cache, "MERGE_AT", 4)
    for start in range(0, 40, 10):
        filled(tmp_path, range(start, start + 10))
    read, calls = judge_cache._read, []

    def disturbed(path: Path, columns: list[str] | None = None) -> pa.Table:
        calls.append(path)
        table = read(path, columns)
        if len(calls) == reading:
            JudgeCache(path.parent).tidy()
        return table

    monkeypatch.setattr(judge_cache, "_read", disturbed)
    JudgeCache(tmp_path).tidy()
    monkeypatch.setattr(judge_cache, "_read", read)
    found = reopened(tmp_path)
    assert [found.get(key(number)) for number in range(40)] == [reply(number) for number in range(40)]


def test_damaged_foreign_and_half_written_files_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_cache, "MERGE_AT", 2)
    filled(tmp_path, range(5))
    (good,) = tmp_path.iterdir()
    (tmp_path / "part-cut.parquet").write_bytes(good.read_bytes()[:-20])
    flipped = bytearray(good.read_bytes())
    flipped[10] ^= 1
    (tmp_path / "part-flipped.parquet").write_bytes(flipped)
    pq.write_table(pa.table({"key": ["a"]}), tmp_path / "part-foreign.parquet")
    (tmp_path / ".tmp-part-x.parquet").write_bytes(b"PAR1")
    old = tmp_path / ".tmp-part-old.parquet"
    old.write_bytes(b"PAR1")
    os.utime(old, (0, 0))
    cache = reopened(tmp_path)
    cache.refresh()
    assert cache.get(key(4)) == reply(4)
    assert caplog.text.count("passes over") == 3, "each is told of once"
    cache.tidy()
    assert not old.exists() and good.exists() and (tmp_path / ".tmp-part-x.parquet").exists()


def test_a_full_or_forbidden_disk_costs_the_entries_and_not_the_run(
    make: Make, rollouts: list[Rollout], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    tags = make(cache=str(tmp_path / "file" / "cache")).tag(rollouts)
    assert {tag.status for tag in tags} == {TagStatus.OK}
    assert "6 replies of the judge are not kept" in caplog.text


KILLED = """
import sys
from pathlib import Path
import rised.rubrics.judge_cache as judge_cache
from rised.records.faults import arm
from rised.rubrics.judge_client import Completion
judge_cache.MERGE_AT = 2
cache = judge_cache.JudgeCache(Path(sys.argv[1]))
cache.put(b"new" + bytes(29), Completion("reply", "stop", 1, None))
arm(int(sys.argv[2]))
cache.flush()
cache.tidy()
"""


@pytest.mark.parametrize(("point", "kept"), [(3, False), (6, True)])
def test_a_killed_writer_leaves_what_was_there(repository: Path, tmp_path: Path, point: int, kept: bool) -> None:
    """Before the rename of its own file, and of the one into which it puts all."""
    filled(tmp_path, range(10))
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(point)], cwd=repository, timeout=200)
    assert done.returncode == -signal.SIGKILL and list(tmp_path.glob(".tmp-*"))
    found = reopened(tmp_path)
    assert [found.get(key(number)) for number in range(10)] == [reply(number) for number in range(10)]
    assert (found.get(b"new" + bytes(29)) is not None) == kept


def test_replies_are_written_before_the_batch_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_cache, "FLUSH_ROWS", 3)
    cache = JudgeCache(tmp_path)
    for number in range(4):
        cache.put(key(number), reply(number))
    assert reopened(tmp_path).get(key(2)) == reply(2) and reopened(tmp_path).get(key(3)) is None
    monkeypatch.setattr(cache, "_flushed", time.monotonic() - 100)
    cache.put(key(4), reply(4))
    assert reopened(tmp_path).get(key(4)) == reply(4)
