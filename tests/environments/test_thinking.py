"""Thinking is never acted on: one rule for every environment, on the recorded replies and on those of each format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rised.environments.alfworld import prepare
from rised.environments.alfworld.actions import action_text, map_normalised
from rised.environments.alfworld.environment import Alfworld
from rised.environments.alfworld.settings import AlfworldSettings
from rised.environments.appworld.replies import read_reply as read_code
from rised.environments.dbbench.replies import Reply, parse_reply
from rised.environments.mapf_frozenlake.styles import read_reply as read_moves
from rised.environments.thinking import without_thinking
from rised.environments.webshop.styles import STYLES

ADMISSIBLE = ["go to desk 1", "go to shelf 1", "go to shelf 2"]
END = "<|im_end|>"


def test_every_recorded_reply_gives_the_recorded_action(cases_dir: Path) -> None:
    rows = json.loads((cases_dir / "17-thinking-and-actions/expected.json").read_text(encoding="utf-8"))
    assert len(rows) == 18
    for row in rows:
        reply = row["reply"].removesuffix(END)  # never part of a reply's text: it is decoded without special tokens
        mapped = map_normalised(action_text(reply, labelled=True) or "", ADMISSIBLE)
        expected = None if row["action"] == "?" else row["action"]  # an opening tag in prose hides the rest
        assert (mapped.text if mapped.exact else None) == expected, row


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("no tags", "no tags"),
        ("  kept as it is \n", "  kept as it is \n"),
        ("<think>a</think>\n b", "b"),
        ("<thinking>a</thinking>b", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>b<think>c", ""),
        ("b<think>c", ""),
        ("<think>a <think>b</think>", ""),
        ("<think>a</think>", ""),
        ("a</think>", ""),
        ("<think>a</think>b<think>c</think> ", "b"),
        ("<thinking>a</think>b", "b"),
        ("", ""),
    ],
)
def test_what_follows_the_thinking_is_the_reply(reply: str, rest: str) -> None:
    assert without_thinking(reply) == rest


WRAPPED = {
    "before": ("<think>I would {wrong}\nbut no</think>\n{right}", True),
    "empty": ("<think></think>\n\n{right}", True),
    "only closed": ("I would\n{wrong}\n</think>\n{right}", True),
    "two blocks": ("<think>a</think>x<think>\n{wrong}\n</think>\n{right}", True),
    "quoted tag": ("<think>I write </think> and\n{wrong}\n</think>\n{right}", True),
    "after": ("{right}\n<think>\n{wrong}\n</think>", True),
    "unclosed": ("<think>\n{wrong}", False),
    "unclosed after": ("<think>a</think>\n<think>\n{wrong}", False),
    "only a thought": ("I would\n{wrong}\n</think>", False),
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("form", ["webshop full", "webshop labelled", "webshop compact", *"operation answer".split()])
def test_webshop_and_dbbench_act_on_what_follows_the_thinking(form: str, name: str) -> None:
    template, acts = WRAPPED[name]
    if form.startswith("webshop"):
        label = "Action: " if form == "webshop labelled" else ""
        reply = template.format(wrong=f"{label}click[buy now]", right=f"{label}click[description]")
        style = STYLES["compact" if form == "webshop compact" else "full"]()
        assert style.read(reply) == (("click", "description") if acts else None)
    else:
        right = "Action: Operation\n```sql\nSELECT 1\n```"
        reply = template.format(wrong='Action: Answer\nFinal Answer: ["9"]', right=right)
        assert parse_reply(reply, "published") == (Reply("operation", "SELECT 1") if acts else Reply("invalid"))
        assert parse_reply(reply, "lenient") == (Reply("operation", "SELECT 1") if acts else Reply("invalid"))
        reply = template.format(wrong="answer: 9", right="sql: SELECT 1")
        assert parse_reply(reply, "compact") == (Reply("operation", "SELECT 1") if acts else Reply("invalid"))


@pytest.mark.parametrize("name", WRAPPED)
def test_appworld_and_frozen_lake_act_on_what_follows_the_thinking(name: str) -> None:
    template, acts = WRAPPED[name]
    reply = template.format(wrong="```python\nprint(2)\n```", right="```python\nprint(1)\n```")
    assert read_code(reply).code == ("print(1)" if acts else None)
    reply = template.format(wrong="Moves:\nA=U B=U", right="Moves:\nA=R B=D")
    assert read_moves("full", reply, 2) == (["rd"] if acts else None)
    assert read_moves("compact", template.format(wrong="uu", right="rd"), 2) == (["rd"] if acts else None)


def test_alfworld_executes_what_follows_the_thinking_in_both_styles_and_mappings() -> None:
    settings = AlfworldSettings(prompt_style="full")
    (task,) = prepare(settings, "train", 1, seed=11)
    for style, label in (("full", "ACTION: "), ("compact", "")):
        for mapping in ("normalised", "faithful"):
            environment = Alfworld(settings.model_copy(update={"prompt_style": style, "mapping": mapping}))
            environment.reset(task, 0)
            wrong, right = [name for name in environment.state.commands if name.startswith("go to")][:2]
            for template, acts in WRAPPED.values():
                environment.reset(task, 0)
                result = environment.step(template.format(wrong=f"{label}{wrong}", right=f"{label}{right}"))
                assert (result.action_mapped if acts else result.action_valid) == (right if acts else False)


@pytest.mark.parametrize("reply", ["my interaction: none yet", "INTERACTION: look", "action: look", "no label"])
def test_alfworlds_label_is_a_word_in_the_benchmarks_case(reply: str) -> None:
    assert action_text(reply, labelled=True) == reply, "no label: the bare reply is the action"
    assert action_text("x Action: look", labelled=True) == " look"
    assert action_text("x ACTION: look", labelled=True, faithful=True) == " look"
    if "ACTION" not in reply:
        assert action_text(reply, labelled=True, faithful=True) is None


def test_a_reply_without_label_ends_a_faithful_alfworld_episode_as_in_agentbench() -> None:
    settings = AlfworldSettings(prompt_style="full", mapping="faithful")
    (task,) = prepare(settings, "train", 1, seed=11)
    environment = Alfworld(settings)
    environment.reset(task, 0)
    result = environment.step("THOUGHT: I look.\nAction: look")
    assert (result.done, result.stop, result.reward, result.success) == (True, "invalid_format", 0.0, False)
    assert not result.action_valid and result.info["event"] == "nothing"
