"""AppWorld's detectors on hand-written logs: shown, violated, and left alone. The engine is not needed.

That real logs have the keys and values that are written here is tested with the engine, in
``tests/environments/test_appworld_environment.py``.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rised.records.types import Rollout, StopReason, TagState, TagStatus, Turn
from rised.rubrics.judge_rules import RuleJudge, load_detectors
from rised.rubrics.vocabulary import Polarity, Vocabulary

D, V, A = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT


def call(name: str, status: int | None = 200, method: str = "get", **more: Any) -> dict[str, Any]:
    app, api = name.split(".")
    base = {"app": app, "api": api, "method": method, "status": status, "unknown_parameters": []}
    return base | {"needs_token": False, "has_token": False, "unseen_ids": []} | more


def guarded(name: str, status: int | None = 200, method: str = "get", **more: Any) -> dict[str, Any]:
    return call(name, status, method, **({"needs_token": True, "has_token": True} | more))


def look_up(app: str, api: str, status: int = 200) -> dict[str, Any]:
    return call("api_docs.show_api_doc", status, about_app=app, about_api=api)


def page(index: int, count: int, limit: int = 5) -> dict[str, Any]:
    return guarded("note.search", page_index=index, page_limit=limit, count=count)


LOGIN = call("note.login", method="post")
READ = guarded("note.show")
WRITE = guarded("note.create", method="post")
TOKENLESS = guarded("note.create", 401, "post", has_token=False)
MISSING = guarded("note.show", 409, unseen_ids=["note_id"])


def ran(code: str, *calls: dict[str, Any], printed: bool = True, **more: Any) -> dict[str, Any]:
    info: dict[str, Any] = {"reply": "code", "problem": "", "blocks": 1, "closed": True, "invents": False}
    info |= {"completed": False, "code": code, "error_type": None, "error": None, "unknown_api": None}
    return info | {"printed": printed, "calls": list(calls), "call_count": len(calls)} | more


def raised(code: str, *calls: dict[str, Any], error_type: str = "Exception", **more: Any) -> dict[str, Any]:
    return ran(code, *calls, printed=False, error_type=error_type, error="no", **more)


def prose(text: str = "I am thinking.") -> dict[str, Any]:
    info = {"reply": "invalid", "problem": "the reply has no code block", "blocks": 0, "closed": True}
    return info | {"invents": False, "completed": False, "raw": text}


def done(*calls: dict[str, Any], code: str = "done()", claims: str = "success") -> dict[str, Any]:
    complete = call("supervisor.complete_task", method="post", claims=claims)
    return ran(code, *calls, complete, printed=False, completed=True)


def rollout(
    *infos: dict[str, Any],
    success: bool = False,
    stop: StopReason = StopReason.ENVIRONMENT_DONE,
    values: tuple[str, ...] = (),
    results: tuple[str, ...] = (),
) -> Rollout:
    """A synthetic rollout; ``results`` are the observations after each turn (its own number where none is given)."""
    turns = []
    for index, info in enumerate(infos):
        log = {name: value for name, value in info.items() if name != "raw"}
        if index == 0:
            log |= {"task_values": list(values), "difficulty": 1}
        observation = results[index - 1] if 0 < index <= len(results) else f"result {index}"
        raw = info.get("raw") or f"```python\n{info['code']}\n```"
        turns.append(Turn(observation, raw, info.get("code", ""), True, 0, 0, False, log))
    final = results[-1] if len(results) == len(infos) else "the end"
    return Rollout(
        rollout_id="r", run="synthetic", step=0, weight_version=0, split="train", environment="appworld", task_id="t",
        group_id="g", rollout_index=0, seed=0, system_prompt="", steering_rubrics=(), steering_text="",
        steering_text_hash="", turns=tuple(turns), final_observation=final, token_ids=(), policy_mask=(),
        logprobs=(), reward=float(success), reward_valid=True, success=success, stop_reason=stop,
    )  # fmt: skip


TURN_LIMIT = StopReason.TURN_LIMIT
CASES: list[tuple[str, Rollout, TagState, int | None]] = [
    ("revises_plan_after_failure", rollout(raised("a"), ran("b")), D, 1),
    ("revises_plan_after_failure", rollout(raised("a"), raised("b"), ran("c")), D, 2),
    ("revises_plan_after_failure", rollout(raised("a"), ran("a")), A, None),
    ("revises_plan_after_failure", rollout(raised("a"), prose(), prose(), ran("b")), A, None),
    ("repeats_failed_action", rollout(raised("a"), raised("a")), V, 1),
    ("repeats_failed_action", rollout(raised("a"), raised("b"), raised("a ")), V, 2),
    ("repeats_failed_action", rollout(prose(), prose()), V, 1),
    ("repeats_failed_action", rollout(raised("a"), ran("b"), raised("a")), A, None),
    ("repeats_failed_action", rollout(ran("a"), ran("a")), A, None),
    ("recovers_from_invalid_action", rollout(prose(), ran("a")), D, 1),
    ("recovers_from_invalid_action", rollout(raised("(", error_type="SyntaxError"), ran("a")), D, 1),
    ("recovers_from_invalid_action", rollout(raised("a"), ran("b")), A, None),
    ("recovers_from_invalid_action", rollout(prose(), raised("a")), A, None),
    ("cycles_between_states", rollout(ran("a"), ran("a"), ran("a"), results=("x", "x", "x")), V, 2),
    ("cycles_between_states", rollout(*map(ran, "abab"), results=("x", "y", "x", "y")), V, 3),
    ("cycles_between_states", rollout(ran("a"), ran("a"), ran("a"), results=("x", "y", "z")), A, None),
    ("cycles_between_states", rollout(*[ran("a", WRITE)] * 3, results=("x", "x", "x")), A, None),
    ("cycles_between_states", rollout(*map(ran, "aba"), results=("x", "y", "x")), A, None),
    ("abandons_task_after_error", rollout(raised("a", READ), done()), V, 1),
    ("abandons_task_after_error", rollout(prose(), done(claims="fail")), V, 1),
    ("abandons_task_after_error", rollout(raised("a"), done(WRITE)), A, None),
    ("abandons_task_after_error", rollout(raised("a"), done(), success=True), A, None),
    ("abandons_task_after_error", rollout(raised("a"), ran("b"), done()), A, None),
    ("ignores_task_constraint", rollout(ran("f('Hello')"), done(), values=("Hello", "World")), V, 1),
    ("ignores_task_constraint", rollout(ran("f('hello', 'World')"), done(), values=("Hello", "World")), A, None),
    ("ignores_task_constraint", rollout(done(), success=True, values=("Hello",)), A, None),
    ("ignores_task_constraint", rollout(done(claims="fail"), values=("Hello",)), A, None),
    ("uses_exact_values_from_task", rollout(ran("f('Hello')"), ran("g('World')"), values=("Hello", "World")), D, 1),
    ("uses_exact_values_from_task", rollout(ran("x"), ran("f('hello')"), values=("Hello",)), V, 1),
    ("uses_exact_values_from_task", rollout(raised("f('Hello')"), values=("Hello",)), A, None),
    ("uses_exact_values_from_task", rollout(ran("f('Hello')")), A, None),
    ("refers_to_unobserved_entity", rollout(ran("a"), raised("b", MISSING)), V, 1),
    ("refers_to_unobserved_entity", rollout(ran("a", READ)), A, None),
    ("hallucinates_observation", rollout(ran("a"), ran("b", invents=True)), V, 1),
    ("hallucinates_observation", rollout(ran("a"), prose()), A, None),
    ("inspects_api_response_before_use", rollout(ran("print(x)", READ), ran("y", WRITE)), D, 0),
    ("inspects_api_response_before_use", rollout(ran("x", READ, printed=False), ran("y", WRITE)), A, None),
    ("inspects_api_response_before_use", rollout(ran("x", READ), ran("y", guarded("mail.send"))), A, None),
    ("inspects_api_response_before_use", rollout(ran("print(x)", READ, WRITE)), A, None),
    ("finishes_without_detour", rollout(ran("a"), done(), success=True), D, 1),
    ("finishes_without_detour", rollout(raised("a"), done(), success=True), A, None),
    ("finishes_without_detour", rollout(ran("a"), ran("a"), done(), success=True), A, None),
    ("finishes_without_detour", rollout(ran("a"), done()), A, None),
    ("exhausts_turn_budget", rollout(ran("a"), ran("b"), stop=TURN_LIMIT), V, 1),
    ("exhausts_turn_budget", rollout(ran("a"), stop=StopReason.EPISODE_TOKEN_LIMIT), V, 0),
    ("exhausts_turn_budget", rollout(ran("a"), done()), A, None),
    ("commits_too_early", rollout(ran("a", LOGIN), done()), V, 1),
    ("commits_too_early", rollout(raised("a", MISSING), done()), V, 1),
    ("commits_too_early", rollout(ran("a", READ), done()), A, None),
    ("commits_too_early", rollout(done(READ)), A, None),
    ("commits_too_early", rollout(done(claims="fail")), A, None),
    ("uses_valid_action_format", rollout(ran("a"), raised("b")), D, 1),
    ("uses_valid_action_format", rollout(ran("a"), prose()), A, None),
    ("uses_valid_action_format", rollout(ran("a", blocks=2), ran("b")), V, 0),
    ("uses_valid_action_format", rollout(ran("a", blocks=0)), A, None),
    ("uses_valid_action_format", rollout(ran("a", closed=False)), A, None),
    ("malformed_action", rollout(ran("a"), prose()), V, 1),
    ("malformed_action", rollout(raised("(", error_type="SyntaxError")), A, None),
    ("verifies_modification_result", rollout(ran("a", WRITE), ran("b", READ), done()), D, 1),
    ("verifies_modification_result", rollout(ran("a", WRITE, READ), done()), D, 0),
    ("verifies_modification_result", rollout(ran("a", READ), ran("b", WRITE), done()), A, None),
    ("verifies_modification_result", rollout(ran("a", WRITE), ran("b", guarded("mail.show")), done()), A, None),
    ("verifies_modification_result", rollout(ran("a", LOGIN), ran("b", READ)), A, None),
    ("claims_false_completion", rollout(ran("a"), done()), V, 1),
    ("claims_false_completion", rollout(done(claims="fail")), A, None),
    ("claims_false_completion", rollout(done(), success=True), A, None),
    ("claims_false_completion", rollout(ran("a"), stop=TURN_LIMIT), A, None),
    ("reads_api_documentation_before_call", rollout(ran("a", look_up("Note", "show")), ran("b", READ)), D, 1),
    ("reads_api_documentation_before_call", rollout(ran("a", READ), ran("b", look_up("note", "show"))), V, 0),
    ("reads_api_documentation_before_call", rollout(ran("a", look_up("note", "show"), READ, WRITE)), A, None),
    ("reads_api_documentation_before_call", rollout(ran("a", look_up("note", "show", 422)), ran("b", READ)), V, 1),
    ("reads_api_documentation_before_call", rollout(ran("a", call("supervisor.show_profile"))), A, None),
    ("hallucinates_api", rollout(ran("a"), raised("b", unknown_api="note.make")), V, 1),
    ("hallucinates_api", rollout(ran("a", call("note.show", unknown_parameters=["colour"]))), V, 0),
    ("hallucinates_api", rollout(raised("a", MISSING), prose()), A, None),
    ("handles_pagination", rollout(ran("a", page(0, 5), page(1, 2)), done()), D, 0),
    ("handles_pagination", rollout(ran("a", page(0, 5)), ran("b", page(1, 5)), ran("c", page(2, 0))), D, 2),
    ("handles_pagination", rollout(ran("a", page(0, 5)), done()), V, 0),
    ("handles_pagination", rollout(ran("a", page(0, 3)), done()), A, None),
    ("handles_pagination", rollout(ran("a", page(0, 5)), ran("b", page(2, 0))), A, None),
    ("obtains_access_token_before_call", rollout(ran("a", LOGIN), ran("b", READ)), D, 1),
    ("obtains_access_token_before_call", rollout(ran("a", LOGIN), raised("b", TOKENLESS)), V, 1),
    ("obtains_access_token_before_call", rollout(raised("a", guarded("note.show", 401))), V, 0),
    ("obtains_access_token_before_call", rollout(ran("a", LOGIN)), A, None),
]


@pytest.mark.parametrize(
    ("rubric", "episode", "state", "turn"), CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)]
)
def test_a_detector_sees_what_the_episode_shows(
    rubric: str, episode: Rollout, state: TagState, turn: int | None
) -> None:
    assert load_detectors()["appworld"][rubric](episode) == (state, turn)


def test_every_rubric_of_appworld_but_one_has_a_detector(vocabulary: Vocabulary) -> None:
    applicable = {rubric.id for rubric in vocabulary.applicable("appworld")}
    assert applicable - set(load_detectors()["appworld"]) == {"completes_subgoals_in_order"}


def test_every_detector_has_a_case_that_shows_it_and_one_that_does_not(vocabulary: Vocabulary) -> None:
    for rubric_id in load_detectors()["appworld"]:
        states = {case[2] for case in CASES if case[0] == rubric_id}
        shown = V if vocabulary.polarity(rubric_id) is Polarity.NEGATIVE else D
        assert {shown, A} <= states, rubric_id


def test_every_detector_is_named_in_at_least_two_unit_cases() -> None:
    named = Counter(
        node.value
        for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    )
    assert [rubric_id for rubric_id in load_detectors()["appworld"] if named[rubric_id] < 2] == []


def test_all_verdicts_are_sound_and_none_fails(vocabulary: Vocabulary) -> None:
    killed = ran("a", error_type="Killed", error="killed", ended_by="time_limit", success=False)
    episodes = [case[1] for case in CASES] + [rollout(killed), rollout(ran("a"), killed, stop=TURN_LIMIT)]
    tags = RuleJudge(vocabulary).tag(episodes)
    assert [tag.reason for tag in tags if tag.status is not TagStatus.OK] == []
