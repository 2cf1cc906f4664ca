"""Each WebShop detector on episodes in a small hand-made shop: one that shows its rubric and one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rised.environments.base import Task
from rised.environments.webshop import WebshopEnvironment, WebshopSettings, prepare
from rised.records.types import Rollout, StopReason, TagState, Turn
from rised.rubrics.judge_rules import load_detectors
from rised.rubrics.vocabulary import Polarity, Vocabulary

DETECTORS = load_detectors()["webshop"]

GOOD, DEAR, RED, LAMP = "B000000001", "B000000002", "B000000003", "B000000009"
"""A fitting item; one over the limit; one without the wanted colour; one of another kind."""


def _raw(asin: str, name: str, price: int, colours: list[str], noun: str = "boots") -> dict[str, Any]:
    options = {"Color": colours, "Size": ["7", "8"]}
    return {
        "asin": asin,
        "name": name,
        "full_description": "",
        "small_description": ["synthetic"],
        "images": ["x"],
        "product_category": f"Shoes › Outdoor › {noun}" if noun == "boots" else f"Home › Light › {noun}",
        "customization_options": {group: [{"value": value} for value in values] for group, values in options.items()},
        "category": "fashion",
        "query": noun,
        "pricing": f"${price}.00",
    }


def _write_shop(folder: Path) -> WebshopSettings:
    products = [
        _raw(GOOD, "Acme Waterproof Leather Boots", 20, ["Black", "Brown"]),
        _raw(DEAR, "Nova Waterproof Leather Boots", 95, ["Black", "Brown"]),
        _raw(RED, "Kite Waterproof Leather Boots", 20, ["Red", "Brown"]),
        *(_raw(f"B00000000{n}", f"Sol Woven Boots {n}", 20, ["Black", "Brown"]) for n in range(4, 9)),
        _raw(LAMP, "Vega Modern Lamp", 20, ["Black", "Brown"], noun="lamp"),
    ]
    attributes = {
        raw["asin"]: {"attributes": ["waterproof", "leather"] if "Leather" in raw["name"] else ["woven"]}
        for raw in products
    }
    human = {
        GOOD: [
            {
                "instruction": "i need waterproof and leather boots with color black and size 8",
                "instruction_attributes": ["waterproof", "leather"],
                "instruction_options": ["black", "8"],
            }
        ]
    }
    for name, content in (("products", products), ("attributes", attributes), ("human", human)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return WebshopSettings(
        source="files",
        products_file=str(folder / "products.json"),
        attributes_file=str(folder / "attributes.json"),
        human_goals_file=str(folder / "human.json"),
        train_range=(0, 1),
        cache_dir=str(folder / "cache"),
    )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[WebshopEnvironment, Task]:
    settings = _write_shop(tmp_path_factory.mktemp("shop"))
    task = prepare(settings, "train", 1, seed=0)[0]
    return WebshopEnvironment(settings), task


Play = Callable[..., Rollout]


@pytest.fixture
def play(shop: tuple[WebshopEnvironment, Task], make_rollout: Callable[..., Rollout]) -> Play:
    """Plays actions; ``open:ID`` clicks that product's number on the page."""
    environment, task = shop

    def run(actions: Sequence[str], stop: StopReason = StopReason.ENVIRONMENT_DONE) -> Rollout:
        observation = environment.reset(task, 0)
        turns: list[Turn] = []
        reward, success = 0.0, False
        for action in actions:
            if action.startswith("open:"):
                action = f"click[{environment.session.visible.index(action.removeprefix('open:')) + 1}]"
            result = environment.step(action)
            info = json.loads(json.dumps(result.info))
            turns.append(Turn(observation, action, result.action_mapped, result.action_valid, 0, 0, False, info))
            observation = result.observation
            if result.done:
                reward, success = result.reward or 0.0, bool(result.success)
        return replace(
            make_rollout("webshop"),
            turns=tuple(turns),
            final_observation=observation,
            stop_reason=stop,
            reward=reward,
            success=success,
        )

    return run


SEARCH = "search[waterproof leather boots]"
CHOOSE = ("click[color black]", "click[size 8]")
PERFECT = (SEARCH, f"open:{GOOD}", *CHOOSE, "click[buy]")
BLIND = (SEARCH, f"open:{GOOD}", "click[buy]")
OVER_LIMIT = (SEARCH, f"open:{DEAR}", *CHOOSE, "click[buy]")
WRONG_KIND = ("search[lamp]", f"open:{LAMP}", "click[buy]")
BROKEN = ("I would like to buy boots", *PERFECT)
REFUSED = ("click[buy]", *PERFECT)

D, V, A = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT

CASES: list[tuple[str, Sequence[str], TagState, int | None]] = [
    ("formulates_constrained_search_query", PERFECT, D, 0),
    ("formulates_constrained_search_query", ("search[boots]", SEARCH), D, 1),
    ("formulates_constrained_search_query", WRONG_KIND, A, None),
    ("formulates_constrained_search_query", ("click[1]",), A, None),
    ("issues_underspecified_query", ("search[boots]",), V, 0),
    ("issues_underspecified_query", PERFECT, A, None),
    ("refines_search_query", ("search[lamp]", SEARCH), D, 1),
    ("refines_search_query", ("search[lamp]", "search[lamp]"), V, 1),
    ("refines_search_query", (SEARCH, "search[boots black]"), A, None),
    ("refines_search_query", PERFECT, A, None),
    ("browses_beyond_first_result_page", (SEARCH, "click[next]"), D, 1),
    ("browses_beyond_first_result_page", WRONG_KIND, V, 2),
    ("browses_beyond_first_result_page", PERFECT, A, None),
    ("opens_relevant_search_result", PERFECT, D, 1),
    ("opens_relevant_search_result", WRONG_KIND, V, 1),
    ("opens_relevant_search_result", ("search[woven]", "open:B000000004"), A, None),
    ("revises_plan_after_failure", REFUSED, D, 1),
    ("revises_plan_after_failure", ("search[zzz]", SEARCH), D, 1),
    ("revises_plan_after_failure", ("click[buy]", "click[buy]"), V, 1),
    ("revises_plan_after_failure", PERFECT, A, None),
    ("repeats_failed_action", ("click[buy]", "click[buy]"), V, 1),
    ("repeats_failed_action", ("click[buy]", "click[next]", "click[buy]"), V, 2),
    ("repeats_failed_action", ("hello", "hello"), V, 1),
    ("repeats_failed_action", ("click[buy]", SEARCH, "click[buy]"), A, None),
    ("recovers_from_invalid_action", REFUSED, D, 1),
    ("recovers_from_invalid_action", ("click[buy]", "click[next]"), V, 1),
    ("recovers_from_invalid_action", PERFECT, A, None),
    ("cycles_between_states", (SEARCH, *(f"open:{GOOD}", "click[back]") * 2), V, 4),
    ("cycles_between_states", (SEARCH, *("click[next]", "click[prev]") * 2), V, 3),
    ("cycles_between_states", (SEARCH,) * 3, V, 2),
    ("cycles_between_states", (SEARCH, f"open:{RED}", "click[back]", f"open:{GOOD}", "click[back]"), A, None),
    ("cycles_between_states", (SEARCH, "click[next]", "click[prev]", *PERFECT[1:]), A, None),
    ("leaves_unsuitable_item", (SEARCH, f"open:{DEAR}", "click[back]"), D, 2),
    ("leaves_unsuitable_item", (SEARCH, f"open:{RED}", "search[boots]"), D, 2),
    ("leaves_unsuitable_item", OVER_LIMIT, V, 4),
    ("leaves_unsuitable_item", (SEARCH, f"open:{GOOD}", "click[back]"), A, None),
    ("ignores_task_constraint", OVER_LIMIT, V, 4),
    ("ignores_task_constraint", BLIND, V, 2),
    ("ignores_task_constraint", PERFECT, A, None),
    ("commits_too_early", BLIND, V, 2),
    ("commits_too_early", (SEARCH, f"open:{GOOD}", "click[size 8]", "click[buy]"), V, 3),
    ("commits_too_early", (SEARCH, f"open:{RED}", "click[size 8]", "click[buy]"), A, None),
    ("commits_too_early", PERFECT, A, None),
    ("selects_requested_option", PERFECT, D, 2),
    ("selects_requested_option", BLIND, V, 2),
    ("selects_requested_option", PERFECT[:2], A, None),
    ("selects_option_not_requested", (SEARCH, f"open:{GOOD}", "click[color brown]"), V, 2),
    ("selects_option_not_requested", PERFECT, A, None),
    ("respects_price_limit", PERFECT, D, 4),
    ("respects_price_limit", OVER_LIMIT, A, None),
    ("respects_price_limit", PERFECT[:4], A, None),
    ("buys_over_budget_item", OVER_LIMIT, V, 4),
    ("buys_over_budget_item", (SEARCH, f"open:{DEAR}", "click[back]", *PERFECT[1:]), A, None),
    ("uses_exact_values_from_task", PERFECT, D, 0),
    ("uses_exact_values_from_task", ("search[rainproof boots]",), V, 0),
    ("uses_exact_values_from_task", ("search[boots]",), A, None),
    ("refers_to_unobserved_entity", (SEARCH, f"open:{GOOD}", "click[color purple]"), V, 2),
    ("refers_to_unobserved_entity", (SEARCH, f"open:{RED}", "click[color black]"), A, None),
    ("refers_to_unobserved_entity", PERFECT, A, None),
    ("hallucinates_observation", (f"{SEARCH} Observation: 1 acme boots",), V, 0),
    ("hallucinates_observation", PERFECT, A, None),
    ("inspects_item_before_purchase", PERFECT, D, 2),
    ("inspects_item_before_purchase", BLIND, A, None),
    ("inspects_item_before_purchase", (*PERFECT[:4], "click[back]", f"open:{GOOD}", "click[buy]"), A, None),
    ("inspects_item_before_purchase", PERFECT[:4], A, None),
    ("buys_without_inspection", BLIND, V, 2),
    ("buys_without_inspection", PERFECT, A, None),
    ("checks_item_description", (SEARCH, f"open:{GOOD}", "click[features]"), D, 2),
    ("checks_item_description", (SEARCH, f"open:{GOOD}", "click[reviews]"), A, None),
    ("compares_candidates", (SEARCH, f"open:{RED}", "click[back]", *PERFECT[1:]), D, 3),
    ("compares_candidates", PERFECT, A, None),
    ("finishes_without_detour", PERFECT, D, 4),
    ("finishes_without_detour", (SEARCH,) * 5 + PERFECT, V, 9),
    ("finishes_without_detour", (SEARCH, *PERFECT), A, None),
    ("finishes_without_detour", BLIND, A, None),
    ("malformed_action", BROKEN, V, 0),
    ("malformed_action", REFUSED, A, None),
    ("uses_valid_action_format", REFUSED, D, 5),
    ("uses_valid_action_format", BROKEN, A, None),
]


@pytest.mark.parametrize(("rubric", "actions", "state", "turn"), CASES)
def test_detector_decides(play: Play, rubric: str, actions: Sequence[str], state: TagState, turn: int | None) -> None:
    assert DETECTORS[rubric](play(actions)) == (state, turn)


@pytest.mark.parametrize("stop", [StopReason.TURN_LIMIT, StopReason.EPISODE_TOKEN_LIMIT])
def test_an_episode_at_a_limit_exhausts_the_budget(play: Play, stop: StopReason) -> None:
    assert DETECTORS["exhausts_turn_budget"](play((SEARCH, SEARCH), stop)) == (V, 1)
    assert DETECTORS["exhausts_turn_budget"](play(PERFECT)) == (A, None)


def test_every_detector_has_a_case_that_shows_it_and_one_that_does_not() -> None:
    for rubric in set(DETECTORS) - {"exhausts_turn_budget"}:
        states = {state for name, _, state, _ in CASES if name == rubric}
        assert len(states) >= 2, rubric


def test_negative_rubrics_are_never_demonstrated_and_all_are_in_the_vocabulary(vocabulary: Vocabulary) -> None:
    assert len(DETECTORS) >= 12
    applicable = {rubric.id for rubric in vocabulary.applicable("webshop")}
    assert set(DETECTORS) <= applicable
    for rubric, _, state, _ in CASES:
        if vocabulary.polarity(rubric) is Polarity.NEGATIVE:
            assert state is not TagState.DEMONSTRATES


def test_detectors_find_nothing_in_an_episode_without_turns(make_rollout: Callable[..., Rollout]) -> None:
    empty = replace(make_rollout("webshop"), turns=())
    assert {detect(empty).state for detect in DETECTORS.values()} == {TagState.ABSENT}


def test_experts_show_the_good_rubrics_and_no_bad_one_without_noise(
    shop: tuple[WebshopEnvironment, Task], play: Play, vocabulary: Vocabulary
) -> None:
    environment, task = shop
    environment.reset(task, 0)
    actions = []
    for action in environment.expert(0, 0.0):
        actions.append(action)
        environment.step(action)
    rollout = play(actions)
    verdicts = {rubric: detect(rollout).state for rubric, detect in DETECTORS.items()}
    assert [rubric for rubric, state in verdicts.items() if state is V] == []
    assert verdicts["selects_requested_option"] is D and verdicts["respects_price_limit"] is D
