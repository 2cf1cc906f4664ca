"""Detectors of WebShop: what a shopping episode shows of each rubric, from the transcript and the environment's log.

The log's fields are documented in ``rised.environments.webshop.log``. A negative rubric that is exhibited is
``violates``; a positive one is ``violates`` only where its opposite is shown clearly and no negative rubric names it.
What counts is [ours].
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from rised.records.types import Rollout, StopReason
from rised.rubrics.base import ABSENT, Verdict, detector
from rised.rubrics.detectors._webshop import (
    Info,
    carried_constraints,
    constraints_of,
    demonstrates,
    departures_of,
    goal_of,
    logs_of,
    openings_of,
    purchase_of,
    searches_of,
    violates,
    words_of,
)

ENVIRONMENT = "webshop"
BUTTONS = frozenset("next prev back to search buy now description features reviews attributes".split())
"""Words of buttons that every shop page may have."""
WASTED_TURNS = 5
"""This many turns beyond the shortest way are a clear detour."""
UNDERSPECIFIED = 3
"""A goal with at least this many constraints leaves nearly all out when a query carries at most one."""


@detector(ENVIRONMENT, "formulates_constrained_search_query")
def formulates_constrained_search_query(rollout: Rollout) -> Verdict:
    """Shown by a query with two constraints (type, attribute, option).

    Its opposite is ``issues_underspecified_query``.
    """
    goal = goal_of(rollout)
    for index, info in searches_of(rollout):
        if carried_constraints(info["argument"], goal) >= min(2, len(constraints_of(goal))):
            return demonstrates(index)
    return ABSENT


@detector(ENVIRONMENT, "issues_underspecified_query")
def issues_underspecified_query(rollout: Rollout) -> Verdict:
    """Exhibited by a query with at most one of three or more constraints."""
    goal = goal_of(rollout)
    for index, info in searches_of(rollout):
        if len(constraints_of(goal)) >= UNDERSPECIFIED and carried_constraints(info["argument"], goal) <= 1:
            return violates(index)
    return ABSENT


@detector(ENVIRONMENT, "refines_search_query")
def refines_search_query(rollout: Rollout) -> Verdict:
    """Shown by a changed query after results without a fitting item; opposite: the same query twice in a row."""
    repeated: Verdict = ABSENT
    previous: set[str] | None = None
    fit_seen = False
    for index, info in logs_of(rollout):
        if info["kind"] == "search" and info["valid"]:
            words = set(words_of(info["argument"]))
            if previous is not None and words != previous and not fit_seen:
                return demonstrates(index)
            if words == previous and repeated is ABSENT:
                repeated = violates(index)
            previous, fit_seen = words, False
        fit_seen = fit_seen or any(fits for _, _, _, fits in info.get("results", ()))
    return repeated


@detector(ENVIRONMENT, "browses_beyond_first_result_page")
def browses_beyond_first_result_page(rollout: Rollout) -> Verdict:
    """Shown by a second page of results; opposite: buying a misfit from a first page that held no fitting item."""
    fit_on_page = True
    for index, info in logs_of(rollout):
        if info["page"] == "results" and info["page_number"] > 1:
            return demonstrates(index)
        if "results" in info:
            fit_on_page = any(fits for _, _, _, fits in info["results"])
        if "purchase" in info and not info["item"]["fits"] and not fit_on_page:
            return violates(index)
    return ABSENT


@detector(ENVIRONMENT, "opens_relevant_search_result")
def opens_relevant_search_result(rollout: Rollout) -> Verdict:
    """Shown by opening an item of the wanted type with a wanted attribute in its title; opposite: another type."""
    other_type: Verdict = ABSENT
    for index, info in openings_of(rollout):
        if info["item"]["same_type"] and info["item"]["attributes_in_title"]:
            return demonstrates(index)
        if not info["item"]["same_type"] and other_type is ABSENT:
            other_type = violates(index)
    return other_type


def _after_failures(rollout: Rollout) -> Iterator[tuple[Info, int, Info]]:
    """Log of a refused action, with index and log of the turn that follows it."""
    logs = logs_of(rollout)
    for (_, failed), (index, following) in zip(logs, logs[1:], strict=False):
        if not failed["valid"]:
            yield failed, index, following


def _action(info: Info) -> tuple[str, str]:
    return info["kind"], info["argument"]


@detector(ENVIRONMENT, "revises_plan_after_failure")
def revises_plan_after_failure(rollout: Rollout) -> Verdict:
    """Shown by another, accepted action that changes something after a refused one or after an empty result list.

    Opposite: the very action that just failed.
    """
    logs = logs_of(rollout)
    repeated: Verdict = ABSENT
    for (_, failed), (index, following) in zip(logs, logs[1:], strict=False):
        if failed["valid"] and not ("results" in failed and not failed["results"]):
            continue
        if following["valid"] and following["changed"] and _action(following) != _action(failed):
            return demonstrates(index)
        if _action(following) == _action(failed) and repeated is ABSENT:
            repeated = violates(index)
    return repeated


@detector(ENVIRONMENT, "repeats_failed_action")
def repeats_failed_action(rollout: Rollout) -> Verdict:
    """Exhibited by a refused action that was refused before, with nothing changed since."""
    failed: set[tuple[str, str]] = set()
    for index, info in logs_of(rollout):
        if info["changed"]:
            failed.clear()
        if not info["valid"]:
            action = _action(info) if info["kind"] != "unreadable" else ("unreadable", rollout.turns[index].action_raw)
            if action in failed:
                return violates(index)
            failed.add(action)
    return ABSENT


@detector(ENVIRONMENT, "recovers_from_invalid_action")
def recovers_from_invalid_action(rollout: Rollout) -> Verdict:
    """Shown by an accepted action right after a refused one; opposite: only refused ones follow."""
    refused: Verdict = ABSENT
    for _, index, following in _after_failures(rollout):
        if following["valid"]:
            return demonstrates(index)
        refused = violates(index) if refused is ABSENT else refused
    return refused


@detector(ENVIRONMENT, "cycles_between_states")
def cycles_between_states(rollout: Rollout) -> Verdict:
    """Exhibited by leaving the same item twice, turning the same page twice, or sending one query three times."""
    counts: Counter[tuple[str, ...]] = Counter()
    left = {index: item["asin"] for index, item in departures_of(rollout)}
    page_number = 1
    for index, info in logs_of(rollout):
        keys: list[tuple[str, ...]] = []
        if index in left:
            keys.append(("left", left[index]))
        if info["page_before"] == info["page"] == "results" and info["kind"] == "click" and info["changed"]:
            keys.append(("turned", info["query"] or "", str(page_number), str(info["page_number"])))
        if info["kind"] == "search" and info["valid"]:
            keys.append(("searched", info["argument"]))
        page_number = info["page_number"]
        for key in keys:
            counts[key] += 1
            if counts[key] >= (3 if key[0] == "searched" else 2):
                return violates(index)
    return ABSENT


@detector(ENVIRONMENT, "leaves_unsuitable_item")
def leaves_unsuitable_item(rollout: Rollout) -> Verdict:
    """Shown by going back from an item that cannot earn the full reward; opposite: buying one, having left none."""
    for index, item in departures_of(rollout):
        if not item["fits"]:
            return demonstrates(index)
    bought = purchase_of(rollout)
    return violates(bought[0]) if bought and not bought[1]["item"]["fits"] else ABSENT


def _if_bought(rollout: Rollout, holds: Callable[[Info, Info], bool]) -> int | None:
    """Turn of the purchase if ``holds(purchase, item)``, else None."""
    bought = purchase_of(rollout)
    return bought[0] if bought and holds(bought[1]["purchase"], bought[1]["item"]) else None


@detector(ENVIRONMENT, "ignores_task_constraint")
def ignores_task_constraint(rollout: Rollout) -> Verdict:
    """Exhibited by a purchase that misses type, attribute, option or price."""
    turn = _if_bought(rollout, lambda purchase, _: abs(purchase["reward"] - 1.0) > 1e-9)
    return ABSENT if turn is None else violates(turn)


@detector(ENVIRONMENT, "commits_too_early")
def commits_too_early(rollout: Rollout) -> Verdict:
    """Exhibited by buying while a wanted option that the item offers is not selected."""
    turn = _if_bought(rollout, lambda purchase, item: purchase["options_met"] < item["options_offered"])
    return ABSENT if turn is None else violates(turn)


@detector(ENVIRONMENT, "selects_requested_option")
def selects_requested_option(rollout: Rollout) -> Verdict:
    """Shown by selecting a wanted option value; opposite: buying without one although some are wanted."""
    for index, info in logs_of(rollout):
        if "option" in info and info["option"]["requested"]:
            return demonstrates(index)
    turn = _if_bought(rollout, lambda purchase, _: purchase["options_wanted"] > 0 and purchase["options_met"] == 0)
    return ABSENT if turn is None else violates(turn)


@detector(ENVIRONMENT, "selects_option_not_requested")
def selects_option_not_requested(rollout: Rollout) -> Verdict:
    """Exhibited by selecting a value of a group for which the goal asks for another one."""
    for index, info in logs_of(rollout):
        if "option" in info and info["option"]["contradicts"]:
            return violates(index)
    return ABSENT


@detector(ENVIRONMENT, "respects_price_limit")
def respects_price_limit(rollout: Rollout) -> Verdict:
    """Shown by a purchase within the limit, if the task names one. Its opposite is ``buys_over_budget_item``."""
    turn = _if_bought(rollout, lambda purchase, _: purchase["price_ok"])
    named = "price lower than" in goal_of(rollout).get("instruction", "")
    return demonstrates(turn) if named and turn is not None else ABSENT


@detector(ENVIRONMENT, "buys_over_budget_item")
def buys_over_budget_item(rollout: Rollout) -> Verdict:
    """Exhibited by a purchase above the limit."""
    turn = _if_bought(rollout, lambda purchase, _: not purchase["price_ok"])
    return ABSENT if turn is None else violates(turn)


@detector(ENVIRONMENT, "uses_exact_values_from_task")
def uses_exact_values_from_task(rollout: Rollout) -> Verdict:
    """Shown by a query with a wanted value and no word of its own; opposite: every query has words of its own."""
    goal, searches = goal_of(rollout), searches_of(rollout)
    if not goal or not searches:
        return ABSENT
    given = set(words_of(goal["instruction"]))
    values = [" ".join(words_of(value)) for value in (*goal["attributes"], *goal["options"])]
    foreign = 0
    for index, info in searches:
        words = words_of(info["argument"])
        if set(words) - given:
            foreign += 1
        elif any(f" {value} " in f" {' '.join(words)} " for value in values):
            return demonstrates(index)
    return violates(searches[0][0]) if foreign == len(searches) else ABSENT


@detector(ENVIRONMENT, "refers_to_unobserved_entity")
def refers_to_unobserved_entity(rollout: Rollout) -> Verdict:
    """Exhibited by a refused click on something named neither in the task nor in any observation so far."""
    seen = set(BUTTONS)
    for index, turn in enumerate(rollout.turns):
        seen.update(words_of(turn.observation))
        info = turn.info
        if info.get("kind") == "click" and not info["valid"] and set(words_of(info["argument"])) - seen:
            return violates(index)
    return ABSENT


@detector(ENVIRONMENT, "hallucinates_observation")
def hallucinates_observation(rollout: Rollout) -> Verdict:
    """Exhibited by a reply that writes a page of the shop itself."""
    for index, turn in enumerate(rollout.turns):
        if re.search(r"\bobservation\s*:|\[sep\]", turn.action_raw, re.IGNORECASE):
            return violates(index)
    return ABSENT


def _inspection(rollout: Rollout) -> tuple[int, int | None] | None:
    """Turn of the purchase, and of the first action on the bought item's page before it (None if there was none)."""
    bought = purchase_of(rollout)
    if bought is None:
        return None
    first: int | None = None
    for index, info in logs_of(rollout)[: bought[0] + 1]:
        if info["page_before"] == "results":
            first = None
        elif info["page_before"] == "item" and info["valid"] and first is None and index != bought[0]:
            first = index
    return bought[0], first


@detector(ENVIRONMENT, "inspects_item_before_purchase")
def inspects_item_before_purchase(rollout: Rollout) -> Verdict:
    """Shown by an option or detail page between opening and buying. Its opposite is ``buys_without_inspection``."""
    _, first = _inspection(rollout) or (None, None)
    return ABSENT if first is None else demonstrates(first)


@detector(ENVIRONMENT, "buys_without_inspection")
def buys_without_inspection(rollout: Rollout) -> Verdict:
    """Exhibited by buying as the first action on the item's page."""
    inspection = _inspection(rollout)
    return violates(inspection[0]) if inspection is not None and inspection[1] is None else ABSENT


@detector(ENVIRONMENT, "checks_item_description")
def checks_item_description(rollout: Rollout) -> Verdict:
    """Shown by opening the description or the features of an item."""
    for index, info in logs_of(rollout):
        if info["valid"] and info["page_before"] == "item" and info["page"] in ("description", "features"):
            return demonstrates(index)
    return ABSENT


@detector(ENVIRONMENT, "compares_candidates")
def compares_candidates(rollout: Rollout) -> Verdict:
    """Shown by opening two different items before buying one."""
    if purchase_of(rollout) is None:
        return ABSENT
    seen: set[str] = set()
    for index, info in openings_of(rollout):
        seen.add(info["item"]["asin"])
        if len(seen) == 2:
            return demonstrates(index)
    return ABSENT


@detector(ENVIRONMENT, "finishes_without_detour")
def finishes_without_detour(rollout: Rollout) -> Verdict:
    """Shown by success on the shortest way: search, open, each option, buy; opposite: five wasted turns or more."""
    bought = purchase_of(rollout)
    if bought is None or not rollout.success:
        return ABSENT
    wasted = len(rollout.turns) - (3 + bought[1]["purchase"]["options_wanted"])
    if wasted <= 0:
        return demonstrates(bought[0])
    return violates(bought[0]) if wasted >= WASTED_TURNS else ABSENT


@detector(ENVIRONMENT, "exhausts_turn_budget")
def exhausts_turn_budget(rollout: Rollout) -> Verdict:
    """Exhibited by an episode that ends at a limit of turns or tokens."""
    at_limit = rollout.stop_reason in (StopReason.TURN_LIMIT, StopReason.EPISODE_TOKEN_LIMIT)
    return violates(len(rollout.turns) - 1) if at_limit and rollout.turns else ABSENT


@detector(ENVIRONMENT, "malformed_action")
def malformed_action(rollout: Rollout) -> Verdict:
    """Exhibited by a reply that is no action."""
    return next((violates(index) for index, info in logs_of(rollout) if info["kind"] == "unreadable"), ABSENT)


@detector(ENVIRONMENT, "uses_valid_action_format")
def uses_valid_action_format(rollout: Rollout) -> Verdict:
    """Shown when every reply was readable. Its opposite is ``malformed_action``."""
    logs = logs_of(rollout)
    readable = malformed_action(rollout) is ABSENT
    return demonstrates(logs[-1][0]) if logs and readable else ABSENT
