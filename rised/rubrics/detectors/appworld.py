"""Detectors of AppWorld: which rubrics a rollout shows, decided from its transcript and the environment's log.

A negative rubric that is exhibited is ``violates``; a positive one is ``demonstrates``, or ``violates`` where its
opposite is plain and no negative rubric names it. Rewards are read only where the rubric itself speaks of reaching the
goal. Of the rubrics that apply here ``completes_subgoals_in_order`` has no detector: the log does not tell what a
task's subgoals are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps

from rised.records.types import Rollout, StopReason, TagState
from rised.rubrics.base import ABSENT, Verdict, detector
from rised.rubrics.detectors._appworld_view import HELPERS, Call, Episode, View, read

TURNS_TO_REVISE = 2
"""A failure counts as answered when one of so many following replies runs."""
_BUDGET_STOPS = frozenset({StopReason.TURN_LIMIT, StopReason.EPISODE_TOKEN_LIMIT})

EpisodeDetector = Callable[[Episode], Verdict]


def _rubric(rubric_id: str) -> Callable[[EpisodeDetector], EpisodeDetector]:
    """Register a detector that takes the episode's view. A rollout without turns shows nothing."""

    def add(function: EpisodeDetector) -> EpisodeDetector:
        @detector("appworld", rubric_id)
        @wraps(function)
        def on_rollout(rollout: Rollout) -> Verdict:
            return function(read(rollout)) if rollout.turns else ABSENT

        return function

    return add


def _shown(found: View | Call | None) -> Verdict:
    return ABSENT if found is None else Verdict(TagState.DEMONSTRATES, _turn(found))


def _violated(found: View | Call | None) -> Verdict:
    return ABSENT if found is None else Verdict(TagState.VIOLATES, _turn(found))


def _turn(found: View | Call) -> int:
    return found.turn if isinstance(found, Call) else found.index


def _first_view(views: Iterable[View]) -> View | None:
    return next(iter(views), None)


def _first_call(calls: Iterable[Call]) -> Call | None:
    return next(iter(calls), None)


# ---- errors and recovery


@_rubric("revises_plan_after_failure")
def revises_plan_after_failure(episode: Episode) -> Verdict:
    """Other code runs within two turns of code that raised."""
    for failure in episode.views:
        if failure.failed:
            after = episode.views[failure.index + 1 : failure.index + 1 + TURNS_TO_REVISE]
            fixed = _first_view(view for view in after if view.ran and view.code != failure.code)
            if fixed is not None:
                return _shown(fixed)
    return ABSENT


@_rubric("repeats_failed_action")
def repeats_failed_action(episode: Episode) -> Verdict:
    """Code that raised, or an unreadable reply, sent again before other code ran."""
    failed: set[str] = set()
    for view in episode.views:
        if not view.ran and view.code in failed:
            return _violated(view)
        if view.ran:
            # Variables and data may have changed, so the same code may now do something else.
            failed.clear()
        else:
            failed.add(view.code)
    return ABSENT


@_rubric("recovers_from_invalid_action")
def recovers_from_invalid_action(episode: Episode) -> Verdict:
    """Code that runs right after a reply of which nothing was executed."""
    pairs = zip(episode.views, episode.views[1:], strict=False)
    return _shown(_first_view(after for before, after in pairs if before.was_refused and after.ran))


@_rubric("cycles_between_states")
def cycles_between_states(episode: Episode) -> Verdict:
    """The same replies with the same results: one three times running, or two in turn, twice; nothing was changed."""
    seen = [(view.code, view.result) for view in episode.views]
    for view in episode.views[2:]:
        index = view.index
        if any(other.changes for other in episode.views[max(index - 3, 0) : index + 1]):
            continue
        thrice = seen[index] == seen[index - 1] == seen[index - 2]
        alternates = index >= 3 and seen[index] == seen[index - 2] and seen[index - 1] == seen[index - 3]
        if thrice or alternates:
            return _violated(view)
    return ABSENT


@_rubric("abandons_task_after_error")
def abandons_task_after_error(episode: Episode) -> Verdict:
    """The task is declared complete right after an error, with nothing read or changed since, and is not solved."""
    end = episode.end
    if end is None or end.index == 0 or episode.rollout.success:
        return ABSENT
    before = episode.views[end.index - 1]
    works = any(call.is_data and call.succeeded for call in end.calls)
    return _violated(end) if (before.failed or before.is_invalid) and not works else ABSENT


# ---- the task's words


@_rubric("ignores_task_constraint")
def ignores_task_constraint(episode: Episode) -> Verdict:
    """Success is claimed, wrongly, though a value that the task quotes never occurred in the code."""
    if episode.end is None or episode.rollout.success or not episode.claims_success:
        return ABSENT
    written = "\n".join(view.code for view in episode.views if not view.is_invalid).lower()
    ignored = any(value.lower() not in written for value in episode.values)
    return _violated(episode.end) if ignored else ABSENT


@_rubric("uses_exact_values_from_task")
def uses_exact_values_from_task(episode: Episode) -> Verdict:
    """Code that ran has written every value that the task quotes; violated by one in another spelling only."""
    if not episode.values:
        return ABSENT
    written, loosely = "", None
    for view in episode.views:
        if view.is_invalid:
            continue
        written = f"{written}\n{view.code}"
        if view.ran and all(value in written for value in episode.values):
            return _shown(view)
        if loosely is None and any(v not in written and v.lower() in written.lower() for v in episode.values):
            loosely = view
    respelt = any(v not in written and v.lower() in written.lower() for v in episode.values)
    return _violated(loosely) if respelt else ABSENT


@_rubric("refers_to_unobserved_entity")
def refers_to_unobserved_entity(episode: Episode) -> Verdict:
    """A call with the id of a record that no reply of an API had shown."""
    return _violated(_first_call(call for call in episode.calls if call.is_data and call.log["unseen_ids"]))


@_rubric("hallucinates_observation")
def hallucinates_observation(episode: Episode) -> Verdict:
    """A reply that goes on after its code with an output, or with further code, that it could not have seen yet."""
    return _violated(_first_view(view for view in episode.views if view.info["invents"]))


# ---- looking before acting


@_rubric("inspects_api_response_before_use")
def inspects_api_response_before_use(episode: Episode) -> Verdict:
    """Records of an app were printed, and a later turn goes on with that app."""
    for view in episode.views:
        if not (view.ran and view.info["printed"]):
            continue
        apps = {call.app for call in view.calls if call.is_reading}
        if any(call.app in apps and call.is_data for call in episode.calls if call.turn > view.index):
            return _shown(view)
    return ABSENT


@_rubric("reads_api_documentation_before_call")
def reads_api_documentation_before_call(episode: Episode) -> Verdict:
    """Every API of the task's apps was looked up before its first call; violated when none was."""
    documented: set[tuple[str, str]] = set()
    first_calls: dict[tuple[str, str], tuple[Call, bool]] = {}
    for call in episode.calls:
        if call.documented is not None:
            documented.add(call.documented)
        elif call.app not in HELPERS and call.name not in first_calls:
            first_calls[call.name] = call, call.name in documented
    if not first_calls:
        return ABSENT
    first = next(iter(first_calls.values()))[0]
    known = [looked_up for _, looked_up in first_calls.values()]
    if all(known):
        return _shown(first)
    return ABSENT if any(known) else _violated(first)


@_rubric("obtains_access_token_before_call")
def obtains_access_token_before_call(episode: Episode) -> Verdict:
    """Every call that needs a token passes one that is accepted; violated by the first that does not."""
    protected = [call for call in episode.calls if call.log["needs_token"]]
    lacking = _first_call(call for call in protected if not call.log["has_token"] or call.log["status"] == 401)
    return _violated(lacking) if lacking is not None else _shown(_first_call(protected))


@_rubric("hallucinates_api")
def hallucinates_api(episode: Episode) -> Verdict:
    """A call of an app or API that does not exist, or with a parameter that the API does not have."""
    for view in episode.views:
        if view.info.get("unknown_api") or any(call.log["unknown_parameters"] for call in view.calls):
            return _violated(view)
    return ABSENT


@_rubric("handles_pagination")
def handles_pagination(episode: Episode) -> Verdict:
    """Pages of a list were requested in order up to one that is not full.

    Violated when the task was declared complete and no list that began with a full page was read to its end.
    """
    progress: dict[tuple[str, str], int] = {}
    unfinished: dict[tuple[str, str], Call] = {}
    for call in episode.before_completion():
        page, limit, count = (call.log.get(name) for name in ("page_index", "page_limit", "count"))
        if not call.is_reading or page is None or limit is None or count is None:
            continue
        if page == 0:
            progress[call.name] = 0
            if count >= limit:
                unfinished.setdefault(call.name, call)
        elif progress.get(call.name) == page - 1:
            progress[call.name] = page
            if count < limit:
                return _shown(call)
    return _violated(_first_call(unfinished.values())) if episode.end is not None else ABSENT


# ---- form and end


@_rubric("uses_valid_action_format")
def uses_valid_action_format(episode: Episode) -> Verdict:
    """Every reply had one closed block of code; violated by several blocks. No code at all is ``malformed_action``."""
    several = _first_view(view for view in episode.views if view.info["blocks"] > 1)
    if several is not None:
        return _violated(several)
    proper = all(view.info["blocks"] == 1 and view.info["closed"] for view in episode.views)
    return _shown(episode.views[-1]) if proper else ABSENT


@_rubric("malformed_action")
def malformed_action(episode: Episode) -> Verdict:
    return _violated(_first_view(view for view in episode.views if view.is_invalid))


@_rubric("verifies_modification_result")
def verifies_modification_result(episode: Episode) -> Verdict:
    """Data of the changed app were read after the last change and before the task was declared complete."""
    calls = episode.before_completion()
    changes = [position for position, call in enumerate(calls) if call.is_change]
    if not changes:
        return ABSENT
    last = calls[changes[-1]]
    return _shown(_first_call(c for c in calls[changes[-1] + 1 :] if c.is_reading and c.app == last.app))


@_rubric("commits_too_early")
def commits_too_early(episode: Episode) -> Verdict:
    """Success is claimed before any call of the task's apps has read or changed something."""
    if episode.end is None or not episode.claims_success:
        return ABSENT
    worked = any(call.is_data and call.succeeded for call in episode.before_completion())
    return ABSENT if worked else _violated(_first_call(call for call in episode.calls if call.completes))


@_rubric("claims_false_completion")
def claims_false_completion(episode: Episode) -> Verdict:
    """The task was declared a success and the engine's tests say that it is none."""
    false = episode.end is not None and episode.claims_success and not episode.rollout.success
    return _violated(episode.end) if false else ABSENT


@_rubric("exhausts_turn_budget")
def exhausts_turn_budget(episode: Episode) -> Verdict:
    return _violated(episode.views[-1]) if episode.rollout.stop_reason in _BUDGET_STOPS else ABSENT


@_rubric("finishes_without_detour")
def finishes_without_detour(episode: Episode) -> Verdict:
    """Solved, with no reply that failed or was sent twice."""
    codes = [view.code for view in episode.views]
    straight = all(view.ran for view in episode.views) and len(set(codes)) == len(codes)
    return _shown(episode.end) if episode.rollout.success and straight else ABSENT
