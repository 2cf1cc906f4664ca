"""The judge's prompt and the shortening of transcripts: what is never cut, and in which order the rest goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rised.records.types import Rollout
from rised.rubrics.base import RubricError
from rised.rubrics.judge_prompt import load_prompt
from rised.rubrics.judge_transcript import transcript
from rised.rubrics.settings import LlmJudgeSettings
from rised.rubrics.vocabulary import Vocabulary

MakeRollout = Callable[..., Rollout]
SHIPPED = "data/prompts/judge_v1.md"


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n")]


def long_rollout(make_rollout: MakeRollout, turns: int = 20, length: int = 1000) -> Rollout:
    return make_rollout(
        "alfworld",
        [(f"observation {i} " + "o" * length, f"reply {i} " + "r" * length) for i in range(turns)],
        system_prompt="System.",
        final_observation="The end.",
    )


# ---- transcripts


def test_a_short_transcript_is_shown_whole_one_json_object_a_line(make_rollout: MakeRollout) -> None:
    rollout = make_rollout("alfworld", [("a\nb", "look"), ("c", "take \ud800")], final_observation="done")
    shown = transcript(rollout, 10_000, 3)
    assert not shown.shortened
    assert entries(shown.text) == [
        {"turn": 0, "observation": "a\nb", "reply": "look"},
        {"turn": 1, "observation": "c", "reply": "take ?"},
        {"after_the_last_turn": "done", "episode_ended_by": "environment_done"},
    ]


def test_neither_reward_nor_success_is_shown(make_rollout: MakeRollout) -> None:
    won = make_rollout("alfworld", reward=1.0, success=True)
    lost = make_rollout("alfworld", reward=0.0, success=False)
    assert transcript(won, 10_000, 3) == transcript(lost, 10_000, 3)


def test_a_long_transcript_first_loses_the_middle_of_its_earlier_texts(make_rollout: MakeRollout) -> None:
    rollout = long_rollout(make_rollout)
    shown = transcript(rollout, 20_000, 3)
    assert shown.shortened and 19_000 < len(shown.text) <= 20_000
    lines = entries(shown.text)
    assert [line["turn"] for line in lines if "turn" in line] == list(range(20))
    assert lines[0] == {"system_prompt": "System."} and lines[-1]["after_the_last_turn"] == "The end."
    assert lines[1]["observation"] == rollout.turns[0].observation, "it states the task"
    for line, turn in zip(lines[-4:-1], rollout.turns[-3:], strict=True):
        assert (line["observation"], line["reply"]) == (turn.observation, turn.action_raw)
    assert "characters left out" in lines[5]["observation"] and lines[5]["observation"].startswith("observation 4")


def test_then_the_oldest_turns_after_the_first_are_left_out(make_rollout: MakeRollout) -> None:
    shown = transcript(long_rollout(make_rollout), 8_500, 3)
    lines = entries(shown.text)
    kept = [line["turn"] for line in lines if "turn" in line]
    assert len(shown.text) <= 8_500 and kept[0] == 0 and kept[-3:] == [17, 18, 19] and 3 < len(kept) < 20
    assert lines[2] == {"turns_left_out": f"1 to {kept[1] - 1}"}


def test_the_last_turns_stay_whole_also_beyond_the_budget(make_rollout: MakeRollout) -> None:
    rollout = long_rollout(make_rollout)
    shown = transcript(rollout, 1_000, 2)
    assert shown.shortened and len(shown.text) > 1_000
    assert all(turn.observation in shown.text and turn.action_raw in shown.text for turn in rollout.turns[-2:])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=300), st.text(max_size=300)), min_size=1, max_size=12),
    st.integers(1_000, 4_000),
    st.integers(1, 4),
)
def test_the_rule_holds_for_any_rollout(
    make_rollout: MakeRollout, turns: list[tuple[str, str]], budget: int, final_turns: int
) -> None:
    rollout = make_rollout("alfworld", turns)
    shown = transcript(rollout, budget, final_turns)
    whole = transcript(rollout, 10**9, final_turns)
    assert shown.shortened == (shown.text != whole.text)
    assert not whole.shortened and entries(shown.text)[-2] == entries(whole.text)[-2]
    if len(whole.text) <= budget:
        assert not shown.shortened


# ---- prompts


def test_the_shipped_prompt_names_every_rubric_with_its_states_before_the_transcript(vocabulary: Vocabulary) -> None:
    assert LlmJudgeSettings(type="llm", model="m").prompt == SHIPPED
    prompt = load_prompt(SHIPPED)
    assert prompt.version == f"judge_v1-{prompt.hash[:8]}"
    for environment in vocabulary.environments:
        rubrics = vocabulary.applicable(environment)
        system, user = prompt.messages(environment, rubrics, "TRANSCRIPT {{rubrics}} {{count}}", 4)
        assert (system["role"], user["role"]) == ("system", "user")
        for rubric in rubrics:
            assert f"- {rubric.id} ({rubric.polarity.value}: " in system["content"]
            assert rubric.definition in system["content"]
        assert "TRANSCRIPT {{rubrics}} {{count}}" in user["content"], "a transcript is never filled in"
        assert "numbered 0 to 3" in user["content"]
        assert "{{" not in system["content"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# System\n{{rubrics}}\n", "headings `# System`, `# User`, `# Again`"),
        ("# User\n{{transcript}}\n# System\n{{rubrics}}\n# Again\n{{reason}}\n", "in this order"),
        ("# System\nno place\n# User\n{{transcript}}\n# Again\n{{reason}}\n", r"\['rubrics'\] must be"),
        ("# System\n{{rubrics}} {{reward}}\n# User\n{{transcript}}\n# Again\n{{reason}}\n", "only .* are known"),
    ],
)
def test_a_prompt_file_that_lacks_something_is_refused_with_what(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "judge_v9.md"
    path.write_text(text)
    with pytest.raises(RubricError, match=words):
        load_prompt(path)


def test_a_missing_prompt_file_is_named() -> None:
    with pytest.raises(RubricError, match="no_such_prompt.md cannot be read"):
        load_prompt("data/prompts/no_such_prompt.md")
