"""Text that breaks writers, logs and pages: what is stored unchanged, what is replaced, what is shown escaped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from record_examples import rollout

from analysis.formatting import latex_escape, markdown_escape
from rised.config import ConfigError
from rised.config.loader import read_plain
from rised.records.errors import RecordError
from rised.records.schemas import from_table, to_table
from rised.records.shards import read_shard, write_shard
from rised.records.text import TEXT_REPLACED, load_json, printable, storable
from rised.records.types import JudgeReply, Rollout, Tag, TagState, TagStatus
from stages.cli import run_stage

SURROGATE = "lone surrogate"


@pytest.fixture(scope="module")
def texts(cases_dir: Path) -> dict[str, str]:
    path = cases_dir / "19-hostile-text-in-shards/texts.json"
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    assert len(found) == 12
    return found | {"one megabyte": "x" * 1048576}


@pytest.mark.parametrize("place", ["observation", "action_raw", "action_mapped", "info", "final", "steering", "system"])
def test_every_text_comes_back_but_for_the_surrogate_which_is_replaced_and_noted(
    texts: dict[str, str], place: str, tmp_path: Path
) -> None:
    def with_text(index: int, text: str) -> Rollout:
        made = rollout(1, index)
        turns = list(made.turns)
        if place == "info":
            turns[1] = replace(turns[1], info={"printed": {"a": [text]}})
        elif place in ("observation", "action_raw", "action_mapped"):
            turns[1] = replace(turns[1], **{place: text})
        names = {"final": "final_observation", "steering": "steering_text", "system": "system_prompt"}
        other = {names[place]: text} if place in names else {}
        return replace(made, turns=tuple(turns), **other)

    given = [with_text(index, text) for index, text in enumerate(texts.values())]
    path = tmp_path / "rollouts.parquet"
    write_shard(path, to_table(given))
    found = from_table(read_shard(path, "rollouts"))
    assert len(found) == 12
    for name, before, after in zip(texts, given, found, strict=True):
        assert after.token_ids == before.token_ids
        if name != SURROGATE:
            assert after == before, name
            continue
        noted = [turn.info.pop(TEXT_REPLACED, False) for turn in after.turns]
        assert noted == ([True, False] if place in ("final", "steering", "system") else [False, True])
        assert after == storable_rollout(before) != before


def storable_rollout(before: Rollout) -> Rollout:
    """As the rollout with the text ``a\\ufffdb``."""
    turns = tuple(
        replace(
            turn,
            observation=turn.observation.replace("\ud800", "\ufffd"),
            action_raw=turn.action_raw.replace("\ud800", "\ufffd"),
            action_mapped=turn.action_mapped.replace("\ud800", "\ufffd"),
            info=json.loads(json.dumps(turn.info).replace("\\ud800", "\\ufffd")),
        )
        for turn in before.turns
    )
    names = ("final_observation", "steering_text", "system_prompt")
    return replace(before, turns=turns, **{name: getattr(before, name).replace("\ud800", "\ufffd") for name in names})


def test_tags_and_judge_replies_with_any_text_are_stored(texts: dict[str, str]) -> None:
    tags = [Tag("r", "x", TagState.ABSENT, None, "j", TagStatus.OK, reason=text) for text in texts.values()]
    found = from_table(to_table(tags))
    assert [tag.reason for tag in found] == [text.replace("\ud800", "\ufffd") for text in texts.values()]
    replies = [JudgeReply("r", "j", TagStatus.OK, "", text, "stop", "0", False, 1, 1) for text in texts.values()]
    assert [reply.reply for reply in from_table(to_table(replies))] == [tag.reason for tag in found]


def test_a_pair_of_surrogates_and_everything_else_stays_as_it_came() -> None:
    assert storable("\U0001f642\ufffe\x00e\u0301") == "\U0001f642\ufffe\x00e\u0301"
    assert storable({"a\ud800": ["\udfff", 1, None, ("b",)]}) == {"a\ufffd": ["\ufffd", 1, None, ("b",)]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\x00b\x07", r"a\x00b\x07"),
        ("abc\u202egnp.exe", r"abc\u202egnp.exe"),
        ("a\r\nb\tc", "a\\x0d\nb\tc"),
        ("\x7f\x9b2J\u2066\ud800", r"\x7f\x9b2J\u2066\ud800"),
        ("plain – Zürich 🙂", "plain – Zürich 🙂"),
    ],
)
def test_control_and_direction_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_control_character_reaches_latex_or_markdown(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        for escaped in (latex_escape(text), markdown_escape(text)):
            assert not any(ord(c) < 32 and c != "\t" or 127 <= ord(c) < 160 or c in "\u202e\ud800" for c in escaped), (
                name
            )
    assert latex_escape("a\x00b") == r"a\textbackslash x00b" and markdown_escape("\x1b[0m") == r"\x1b[0m"


def test_no_control_character_of_an_error_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RecordError("task \x1b]0;title\x07 \ud800 failed")

    with pytest.raises(SystemExit):
        run_stage(fail)
    assert capsys.readouterr().err == "error: task \\x1b]0;title\\x07 \\ud800 failed\n"


@pytest.mark.parametrize(
    ("line", "escape"),
    [(r'{"a": "b\ud800c"}', r"\ud800"), (r'["\uDC00\ud83d"]', r"\uDC00"), (r'["\ud83d\ud83d\ude00"]', r"\ud83d")],
)
def test_json_with_half_a_character_is_refused_with_its_line(line: str, escape: str) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        load_json("\n\n" + line)
    assert caught.value.lineno == 3 and caught.value.msg.startswith(escape)


def test_json_with_whole_characters_is_read_as_ever() -> None:
    text = r'["\ud83d\ude00", "\\ud800", "\u00e9\n", "é"]'
    assert load_json(text) == json.loads(text) == ["\U0001f600", r"\ud800", "é\n", "é"]


def test_yaml_with_half_a_character_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.yaml"
    for content in ('a: 1\nb: ["x", "\\ud800"]\n', 'a: 1\n"\\udc00": 2\n'):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"vocabulary\.yaml:2.*half a character"):
            read_plain(path)
