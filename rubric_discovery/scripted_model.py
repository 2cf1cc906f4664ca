"""A stand-in for the strong model: a few rules on the text of transcripts that answer discovery's four questions.

It makes the steps run end to end without a model and gives equal replies to equal requests. It finds only what stands
in the table below, so nothing that it "discovers" is a discovery. On purpose it also proposes what the screens are
there to drop: a behaviour that everybody shows, one that nobody can tag twice alike, a name for the outcome, an answer
of one task, and one whose quote is invented. All of it is ours.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FAILED = re.compile(r"nothing happens|invalid|error|exception|no results|not found", re.IGNORECASE)
_SEARCH = re.compile(r"search\[([^\]]*)\]", re.IGNORECASE)
_CHANGES_STATE = re.compile(r"\b(heat|cool|clean)\b", re.IGNORECASE)
_TAKES = re.compile(r"\btake\b", re.IGNORECASE)
_ANSWERS = re.compile(r"\b(final )?answer\s*:", re.IGNORECASE)
_QUERY = re.compile(r"\bselect\b|\bshow\b|\bdescribe\b", re.IGNORECASE)
_BUYS = re.compile(r"click\[\s*buy", re.IGNORECASE)
_ITEM = re.compile(r"click\[([a-z]*\d{4,}\w*)\]", re.IGNORECASE)
_RUBRIC = re.compile(r"^- ([a-z0-9_]+) \((positive|negative):", re.MULTILINE)
_ENVIRONMENT = re.compile(r'environment "(\w+)"')


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of a transcript: what the agent read, said, and got. ``executed``: what was made of the reply."""

    number: int
    observation: str
    reply: str
    executed: str
    result: str

    @property
    def failed(self) -> bool:
        return bool(_FAILED.search(self.result))


@dataclass(frozen=True, slots=True)
class Episode:
    """A transcript. ``key``: hash of all that was asked, so that a rule may be unreliable in a repeatable way."""

    environment: str
    steps: tuple[Step, ...]
    ended_by: str
    key: str


Rule = Callable[[Episode], int | None]
"""The number of the turn that shows the behaviour; None when it is not shown."""


def _first(test: Callable[[Step, Step | None], bool]) -> Rule:
    """The first turn that passes a test of it and of the turn before."""

    def rule(episode: Episode) -> int | None:
        before: Step | None = None
        for step in episode.steps:
            if test(step, before):
                return step.number
            before = step
        return None

    return rule


def _buys_unselected(episode: Episode) -> int | None:
    selected = any("selected" in step.result.lower() for step in episode.steps)
    buys = [step.number for step in episode.steps if _BUYS.search(step.reply)]
    return buys[0] if buys and not selected else None


def _answers_unread(episode: Episode) -> int | None:
    read = any(_QUERY.search(step.reply) and not step.failed for step in episode.steps)
    answers = [step.number for step in episode.steps if _ANSWERS.search(step.reply)]
    return answers[0] if answers and not read else None


def _finishes(episode: Episode) -> int | None:
    return episode.steps[-1].number if episode.steps and episode.ended_by == "environment_done" else None


def _by_chance(episode: Episode) -> int | None:
    return 0 if episode.steps and int(episode.key[:8], 16) % 2 else None


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One rule and the words for it: environment -> (id, definition). "" is any environment without own words."""

    polarity: str
    rule: Rule
    skill: str
    words: Mapping[str, tuple[str, str]]
    shows: str
    misses: str
    always_proposed: bool = False

    def named(self, environment: str) -> tuple[str, str] | None:
        return self.words.get(environment, self.words.get(""))


BEHAVIOURS = (
    Behaviour(
        "negative",
        _first(lambda s, b: b is not None and b.failed and s.reply == b.reply),
        "error_recovery",
        {
            "": ("repeats_failed_action", "Sends an action again that just failed although nothing has changed."),
            "dbbench": ("repeats_failed_query", "Sends a query again that just failed although nothing has changed."),
        },
        "The same action follows an error message.",
        "Another action follows an error message.",
    ),
    Behaviour(
        "positive",
        _first(lambda s, b: b is not None and b.failed and s.reply != b.reply and not s.failed),
        "error_recovery",
        {
            "": ("changes_action_after_failure", "After an action that failed, sends a different action that works."),
            "dbbench": (
                "changes_query_after_failure",
                "After a query that failed, sends a different query that runs.",
            ),
        },
        "An error message is followed by a corrected action.",
        "An error message is followed by the same action.",
    ),
    Behaviour(
        "negative",
        _first(lambda s, b: s.failed),
        "error_recovery",
        {"": ("sends_rejected_action", "Sends an action that the environment rejects or cannot carry out.")},
        "The environment answers that nothing happens.",
        "The environment carries every action out.",
    ),
    Behaviour(
        "positive",
        _first(lambda s, b: (m := _SEARCH.search(s.reply)) is not None and len(m[1].split()) >= 3),
        "search",
        {"webshop": ("searches_with_several_constraints", "Puts several constraints of the task into a search query.")},
        "The query names kind, colour and size.",
        "The query names the kind alone.",
    ),
    Behaviour(
        "positive",
        _first(lambda s, b: "selected" in s.result.lower()),
        "completion",
        {"webshop": ("selects_options_before_buying", "Selects the options that the task names before it buys.")},
        "Colour and size are chosen, then the item is bought.",
        "The item is bought without a choice of colour.",
    ),
    Behaviour(
        "negative",
        _buys_unselected,
        "completion",
        {"webshop": ("buys_without_selecting_options", "Buys an item without having selected any option of it.")},
        "The item is bought as soon as it is open.",
        "The size is chosen before the item is bought.",
    ),
    Behaviour(
        "positive",
        _first(lambda s, b: bool(_QUERY.search(s.reply)) and not s.failed),
        "search",
        {"dbbench": ("reads_table_before_answering", "Reads the table by a query that runs before it answers.")},
        "A query returns rows, then the answer is given.",
        "The answer is given without a query that ran.",
    ),
    Behaviour(
        "negative",
        _answers_unread,
        "completion",
        {"dbbench": ("answers_without_reading_table", "Gives an answer although no query on the table has run.")},
        "The answer follows a syntax error.",
        "The answer follows rows of the table.",
    ),
    Behaviour(
        "positive",
        _first(lambda s, b: bool(_CHANGES_STATE.search(s.reply)) and not s.failed),
        "manipulation",
        {"alfworld": ("prepares_object_before_placing", "Heats, cools or cleans an object before it is placed.")},
        "The object is heated, then it is placed.",
        "The object is placed as it was found.",
    ),
    Behaviour(
        "positive",
        _first(lambda s, b: bool(_TAKES.search(s.reply)) and not s.failed),
        "manipulation",
        {"alfworld": ("takes_object_that_is_there", "Takes an object that is visible at the place where it stands.")},
        "The object is seen and taken.",
        "An object is taken that is not there.",
    ),
    Behaviour(
        "positive",
        lambda episode: 0 if episode.steps else None,
        "completion",
        {"": ("sends_an_action_in_its_turn", "Sends an action to the environment when it is its turn to act.")},
        "A reply holds an action.",
        "The episode has no reply.",
        always_proposed=True,
    ),
    Behaviour(
        "positive",
        _by_chance,
        "completion",
        {"": ("acts_with_confidence", "Acts in a way that seems confident to somebody who reads it.")},
        "The reply seems sure of itself.",
        "The reply seems to be in doubt.",
        always_proposed=True,
    ),
    Behaviour(
        "positive",
        _finishes,
        "completion",
        {"alfworld": ("brings_episode_to_its_goal", "Brings the episode to the end that the environment calls done.")},
        "The last action reaches the goal.",
        "The episode runs out of turns.",
    ),
)


def answer(question: str, messages: Sequence[Mapping[str, str]]) -> str:
    """The reply to a chat, by the name of the schema that it is to have: one of ``ANSWERS``."""
    return json.dumps(ANSWERS[question](messages), ensure_ascii=False)


def _episode(text: str, environment: str, key: str) -> Episode:
    """Read a transcript, one JSON object a line."""
    turns: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "turn" in entry:
            turns.append(entry)
        elif isinstance(entry, dict) and "episode_ended_by" in entry:
            last = entry
    results = [turn["observation"] for turn in turns[1:]] + [""]
    steps = tuple(
        Step(turn["turn"], turn["observation"], turn["reply"], turn.get("executed", turn["reply"]), result)
        for turn, result in zip(turns, results, strict=True)
    )
    return Episode(environment, steps, last.get("episode_ended_by", ""), key)


def _asked(messages: Sequence[Mapping[str, str]]) -> tuple[str, str, str]:
    """Environment, the first user message, and the key of the request."""
    found = _ENVIRONMENT.search(messages[0]["content"])
    key = hashlib.sha256(json.dumps(list(messages), sort_keys=True).encode()).hexdigest()
    return (found[1] if found else ""), messages[1]["content"], key


def _behaviours(messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    environment, text, key = _asked(messages)
    first, _, second = text.partition("Episode B,")
    episodes = {"A": _episode(first, environment, key), "B": _episode(second, environment, key)}
    found = []
    for behaviour in BEHAVIOURS:
        named = behaviour.named(environment)
        wanted, other = ("A", "B") if behaviour.polarity == "positive" else ("B", "A")
        turn = behaviour.rule(episodes[wanted])
        if named is None or turn is None:
            continue
        if behaviour.always_proposed or behaviour.rule(episodes[other]) is None:
            found.append(_found(named[1], behaviour.polarity, wanted, turn, episodes[wanted]))
    for step in episodes["A"].steps:
        item = _ITEM.search(step.executed)
        if item:
            words = f"Opens the item {item[1]}, which is the one that fits the task."
            found.append(_found(words, "positive", "A", step.number, episodes["A"]))
            break
    invented = {"behaviour": "Asks the user for help.", "polarity": "positive", "episode": "A", "turn": 0}
    return {"behaviours": [*found[:7], invented | {"quote": "could you please help me with this task"}]}


def _found(words: str, polarity: str, name: str, turn: int, episode: Episode) -> dict[str, Any]:
    quote = next(step.reply for step in episode.steps if step.number == turn)
    return {"behaviour": words, "polarity": polarity, "episode": name, "turn": turn, "quote": quote}


def _rubrics(messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    environment, text, _ = _asked(messages)
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"number"')]
    numbers: dict[str, list[int]] = {}
    for line in lines:
        numbers.setdefault(line["behaviour"], []).append(line["number"])
    known = {named[1]: (named[0], b) for b in BEHAVIOURS if (named := b.named(environment)) is not None}
    rubrics, left_out = [], []
    for words, members in numbers.items():
        item = re.search(r"item (\w+),", words)
        if words in known:
            rubric_id, behaviour = known[words]
            entry: dict[str, Any] = {"id": rubric_id, "definition": words, "polarity": behaviour.polarity}
            examples = {"positive_example": behaviour.shows, "negative_example": behaviour.misses}
        elif item:
            entry = {"id": f"opens_item_{item[1].lower()}", "definition": words, "polarity": "positive"}
            examples = {"positive_example": "The item is opened.", "negative_example": "Another item is opened."}
        else:
            left_out += members
            continue
        rubrics.append({"numbers": members} | entry | examples)
    return {"rubrics": rubrics, "left_out": left_out}


def _skills(messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    ids = [json.loads(line)["id"] for line in messages[1]["content"].splitlines() if line.startswith('{"id"')]
    skill_of = {named[0]: b.skill for b in BEHAVIOURS for named in b.words.values()}
    skills: dict[str, list[str]] = {}
    for rubric_id in ids:
        skills.setdefault(skill_of.get(rubric_id, "search"), []).append(rubric_id)
    return {
        "skills": [
            {"id": skill, "definition": f"Behaviours that belong to {skill.replace('_', ' ')}.", "rubrics": members}
            for skill, members in skills.items()
        ]
    }


def _tags(messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    environment, text, key = _asked(messages)
    episode = _episode(text, environment, key)
    rules = {named[0]: b.rule for b in BEHAVIOURS for named in b.words.values()}
    tags = []
    for rubric_id, polarity in _RUBRIC.findall(messages[0]["content"]):
        item = rubric_id.removeprefix("opens_item_")
        turn = rules[rubric_id](episode) if rubric_id in rules else None
        if item != rubric_id:
            turn = next((s.number for s in episode.steps if item in s.executed.lower()), None)
        state = "absent" if turn is None else "demonstrates" if polarity == "positive" else "violates"
        tags.append({"id": rubric_id, "state": state, "evidence_turn": turn})
    return {"tags": tags}


ANSWERS: dict[str, Callable[[Sequence[Mapping[str, str]]], dict[str, Any]]] = {
    "behaviours": _behaviours,
    "rubrics": _rubrics,
    "skills": _skills,
    "tags": _tags,
}
"""Name of the reply's schema -> what answers."""
