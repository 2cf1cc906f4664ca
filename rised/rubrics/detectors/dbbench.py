"""Detectors of DBBench: which rubrics a rollout shows, decided from its transcript and the environment's log.

A negative rubric that is exhibited is ``violates``; a positive one is ``demonstrates``, or ``violates`` where its
opposite is plain and no negative rubric names it. Rewards are read only where the rubric itself speaks of reaching the
goal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import wraps

from rised.records.types import Rollout, StopReason, TagState
from rised.rubrics.base import ABSENT, Verdict, detector
from rised.rubrics.detectors._dbbench_view import Episode, View, read

EPISODE_TURNS_WITHOUT_DETOUR = 2
"""One operation and one answer."""
_BUDGET_STOPS = frozenset({StopReason.TURN_LIMIT, StopReason.EPISODE_TOKEN_LIMIT})
_INVENTED = re.compile(r"^\s*(?:result|error|observation|output)\s*:", re.IGNORECASE | re.MULTILINE)
_SECOND_REPLY = re.compile(r"^\s*(?:sql|answer)\s*:", re.IGNORECASE | re.MULTILINE)
_AGGREGATING = ("counting", "aggregation-")

EpisodeDetector = Callable[[Episode], Verdict]


def _rubric(rubric_id: str) -> Callable[[EpisodeDetector], EpisodeDetector]:
    """Register a detector that takes the episode's view. A rollout without turns shows nothing."""

    def add(function: EpisodeDetector) -> EpisodeDetector:
        @detector("dbbench", rubric_id)
        @wraps(function)
        def on_rollout(rollout: Rollout) -> Verdict:
            return function(read(rollout)) if rollout.turns else ABSENT

        return function

    return add


def _shown(view: View | None) -> Verdict:
    return ABSENT if view is None else Verdict(TagState.DEMONSTRATES, view.index)


def _violated(view: View | None) -> Verdict:
    return ABSENT if view is None else Verdict(TagState.VIOLATES, view.index)


def _first(views: Iterable[View]) -> View | None:
    return next(iter(views), None)


# ---- looking at the database


@_rubric("explores_database_schema")
def explores_database_schema(episode: Episode) -> Verdict:
    """A catalogue statement or a look at whole rows, with another operation after it."""
    looks = [v for v in episode.operations[:-1] if (v.ran and v.info["catalogue"]) or v.is_preview]
    return _shown(_first(looks))


@_rubric("previews_data_before_aggregation")
def previews_data_before_aggregation(episode: Episode) -> Verdict:
    """Rows were read, without aggregates, before the first query with an aggregate."""
    first = _first(v for v in episode.operations if v.is_query and v.info["aggregates"])
    if first is None:
        return ABSENT
    return _shown(_first(v for v in episode.operations if v.index < first.index and v.is_query and v.info["rows"]))


@_rubric("verifies_modification_result")
def verifies_modification_result(episode: Episode) -> Verdict:
    """A query of the data after the last change that touched rows, in a task that asks for a change."""
    changes = [v for v in episode.operations if v.is_modification and v.info["changed"]]
    if not episode.asks_for_change or not changes:
        return ABSENT
    return _shown(_first(v for v in episode.operations if v.index > changes[-1].index and v.is_query))


# ---- errors and recovery


@_rubric("revises_plan_after_failure")
def revises_plan_after_failure(episode: Episode) -> Verdict:
    """After an error, or a query that found nothing, other operations lead to one that runs and finds something."""
    for failure in episode.operations:
        if not (failure.failed or failure.found_nothing):
            continue
        later = [v for v in episode.operations if v.index > failure.index]
        if failure.found_nothing:
            later = later[:2]
        fixed = _first(v for v in later if v.ran and v.sql != failure.sql and not v.found_nothing)
        if fixed is not None:
            return _shown(fixed)
    return ABSENT


@_rubric("repeats_failed_action")
def repeats_failed_action(episode: Episode) -> Verdict:
    """A refused statement or unreadable reply sent again before anything in the database changed."""
    failed: set[str] = set()
    for view in episode.views:
        action = view.sql if view.is_operation else view.raw.strip()
        if (view.failed or view.is_invalid) and action in failed:
            return _violated(view)
        if view.failed or view.is_invalid:
            failed.add(action)
        elif view.is_modification and view.info["changed"]:
            failed.clear()
    return ABSENT


@_rubric("corrects_query_after_error")
def corrects_query_after_error(episode: Episode) -> Verdict:
    """The operation after a refused one differs from it and runs."""
    pairs = zip(episode.operations, episode.operations[1:], strict=False)
    return _shown(_first(b for a, b in pairs if a.failed and b.ran and b.sql != a.sql))


@_rubric("recovers_from_invalid_action")
def recovers_from_invalid_action(episode: Episode) -> Verdict:
    """A readable reply right after an unreadable one."""
    pairs = zip(episode.views, episode.views[1:], strict=False)
    return _shown(_first(b for a, b in pairs if a.is_invalid and not b.is_invalid))


@_rubric("abandons_task_after_error")
def abandons_task_after_error(episode: Episode) -> Verdict:
    """The answer follows a refused operation although no earlier one settled the task."""
    answer = episode.answer
    if answer is None or answer.index == 0:
        return ABSENT
    before = episode.views[answer.index - 1]
    settled = episode.decisive is not None and not episode.decisive.is_preview
    return _violated(answer) if (before.failed or before.is_invalid) and not settled else ABSENT


# ---- the task's words


def _missing(episode: Episode, view: View) -> list[str]:
    """Quoted values and numbers of the task that the statement does not contain."""
    values = [value for value in episode.values if value not in view.sql]
    numbers = [n for n in episode.numbers if not re.search(rf"(?<!\d){re.escape(n)}(?!\d)", view.sql)]
    return values + numbers


@_rubric("ignores_task_constraint")
def ignores_task_constraint(episode: Episode) -> Verdict:
    """The task was answered on a statement that lacks a value or number which the task gives."""
    answer, decisive = episode.answer, episode.decisive
    if answer is None or decisive is None or decisive.is_preview:
        return ABSENT
    settling = [v for v in episode.operations if v.is_modification or (v.is_query and not v.is_preview)]
    if any(not _missing(episode, view) for view in settling):
        return ABSENT
    return _violated(decisive)


@_rubric("uses_exact_values_from_task")
def uses_exact_values_from_task(episode: Episode) -> Verdict:
    """A statement that ran names every value and number of the task; violated by text literals put in their place."""
    if not episode.values and not episode.numbers:
        return ABSENT
    exact = _first(v for v in episode.operations if v.ran and not _missing(episode, v))
    if exact is not None:
        return _shown(exact)
    return _violated(_first(v for v in episode.operations if v.ran and _missing(episode, v) and _unseen_literals(v)))


def _unseen_literals(view: View) -> list[str]:
    """Text literals of an operation that stand neither in the task nor in any observation before it."""
    texts = [str(literal).lower().strip("%_ ") for literal in view.info.get("literals", ())]
    return [text for text in texts if len(text) > 1 and not _is_number(text) and text not in view.seen]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


@_rubric("refers_to_unobserved_entity")
def refers_to_unobserved_entity(episode: Episode) -> Verdict:
    """A statement with a text literal that nothing so far has mentioned."""
    return _violated(_first(v for v in episode.operations if _unseen_literals(v)))


@_rubric("hallucinates_observation")
def hallucinates_observation(episode: Episode) -> Verdict:
    """A reply that writes the database's answer itself, or a final answer that no observation supports."""
    invented = _first(v for v in episode.views if _INVENTED.search(v.raw) or len(_SECOND_REPLY.findall(v.raw)) > 1)
    if invented is not None:
        return _violated(invented)
    answer = episode.answer
    if answer is None or episode.asks_for_change or answer.info["answer_matches_result"]:
        return ABSENT
    row_counts = {str(v.info["rows"]) for v in episode.operations if v.is_query}
    values = [str(value).lower() for value in answer.info["answer"]]
    supported = any(_appears(value, answer.seen) or value in row_counts for value in values)
    return ABSENT if supported or not values else _violated(answer)


def _appears(value: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", text) is not None


# ---- the query


@_rubric("filters_in_query")
def filters_in_query(episode: Episode) -> Verdict:
    """A query with WHERE or HAVING ran; violated when a question that quotes a value was answered without one."""
    filtered = _first(v for v in episode.operations if v.ran and v.info["has_filter"])
    if filtered is not None:
        return _shown(filtered)
    if episode.asks_for_change or not episode.values or episode.decisive is None:
        return ABSENT
    return _violated(episode.answer)


@_rubric("uses_aggregate_function")
def uses_aggregate_function(episode: Episode) -> Verdict:
    """A query with an aggregate, or with ORDER BY … LIMIT for a ranking; violated when none was used for a figure."""
    if episode.asks_for_change:
        return ABSENT
    ranks = episode.task_type == "ranking"
    queries = [v for v in episode.operations if v.is_query]
    used = _first(v for v in queries if v.info["aggregates"] or (ranks and v.info["has_limit"] and not v.is_preview))
    if used is not None:
        return _shown(used)
    return _violated(episode.answer) if episode.task_type.startswith(_AGGREGATING) else ABSENT


@_rubric("names_columns_from_schema")
def names_columns_from_schema(episode: Episode) -> Verdict:
    """Every statement that could be read uses names of the schema only, and at least one names a column.

    Its opposite is ``uses_nonexistent_column_or_table``.
    """
    if any(v.info["unknown_names"] for v in episode.operations):
        return ABSENT
    return _shown(_first(v for v in episode.operations if v.info["columns"]))


@_rubric("uses_nonexistent_column_or_table")
def uses_nonexistent_column_or_table(episode: Episode) -> Verdict:
    refused = ("no_such_column", "no_such_table")
    unknown = (v for v in episode.operations if v.info["unknown_names"] or v.info["error_class"] in refused)
    return _violated(_first(unknown))


@_rubric("writes_invalid_sql")
def writes_invalid_sql(episode: Episode) -> Verdict:
    return _violated(_first(v for v in episode.operations if v.info["error_class"] in ("syntax", "empty")))


@_rubric("issues_multiple_statements")
def issues_multiple_statements(episode: Episode) -> Verdict:
    return _violated(_first(v for v in episode.operations if v.info["error_class"] == "several_statements"))


@_rubric("modifies_table_in_read_task")
def modifies_table_in_read_task(episode: Episode) -> Verdict:
    """A change that ran although the task asks a question."""
    if episode.asks_for_change:
        return ABSENT
    return _violated(_first(v for v in episode.operations if v.is_modification))


# ---- form and end


@_rubric("uses_valid_action_format")
def uses_valid_action_format(episode: Episode) -> Verdict:
    """Every reply could be read. Its opposite is ``malformed_action``."""
    return ABSENT if any(v.is_invalid for v in episode.views) else _shown(episode.views[-1])


@_rubric("malformed_action")
def malformed_action(episode: Episode) -> Verdict:
    return _violated(_first(v for v in episode.views if v.is_invalid))


@_rubric("answer_matches_query_result")
def answer_matches_query_result(episode: Episode) -> Verdict:
    """The answer to a question equals the last result read, under the benchmark's comparison; violated otherwise."""
    answer = episode.answer
    if answer is None or episode.asks_for_change or answer.info["answer_matches_result"] is None:
        return ABSENT
    return _shown(answer) if answer.info["answer_matches_result"] else _violated(answer)


@_rubric("answers_without_query")
def answers_without_query(episode: Episode) -> Verdict:
    """An answer though no statement on the data ran before it."""
    touched = any(v.is_query or v.is_modification for v in episode.operations)
    return ABSENT if touched else _violated(episode.answer)


@_rubric("commits_too_early")
def commits_too_early(episode: Episode) -> Verdict:
    """An answer before a row was changed, where a change is asked for, or on no more than a look at whole rows."""
    answer, decisive = episode.answer, episode.decisive
    if answer is None:
        return ABSENT
    if episode.asks_for_change:
        ready = any(v.is_modification and v.info["changed"] for v in episode.operations)
    else:
        ready = decisive is not None and not (decisive.is_preview and decisive.info["has_limit"])
    return ABSENT if ready else _violated(answer)


@_rubric("claims_false_completion")
def claims_false_completion(episode: Episode) -> Verdict:
    """Done was declared though the table never became what the task asks for, or a question was answered by 'done'."""
    answer = episode.answer
    if answer is None:
        return ABSENT
    if episode.asks_for_change:
        return ABSENT if answer.info["gold_state"] else _violated(answer)
    return _violated(answer) if [str(value).lower() for value in answer.info["answer"]] == ["done"] else ABSENT


@_rubric("exhausts_turn_budget")
def exhausts_turn_budget(episode: Episode) -> Verdict:
    return _violated(episode.views[-1]) if episode.rollout.stop_reason in _BUDGET_STOPS else ABSENT


@_rubric("finishes_without_detour")
def finishes_without_detour(episode: Episode) -> Verdict:
    """The goal reached by one operation and the answer."""
    short = len(episode.views) <= EPISODE_TURNS_WITHOUT_DETOUR
    return _shown(episode.answer) if episode.rollout.success and short else ABSENT
