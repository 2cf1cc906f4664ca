"""DBBench's episode: a fresh database, operations until an answer, the published verdict.

``StepResult.action_valid`` is True for a readable reply whose statement, if it is one, ran.
``StepResult.info`` of every turn, all JSON values, for detectors and reports:

- ``reply``: operation, answer or invalid; ``task_type``, ``modification_task``; ``style``
- of an operation: ``sql`` (its first 8,000 characters), ``statement`` (SELECT, INSERT, …), ``tables``, ``columns``,
  ``literals``, ``aggregates``, ``has_filter``, ``has_limit``, ``has_star``, ``catalogue`` (asks for the schema),
  ``unknown_names`` (not in the schema), ``error`` and ``error_class`` (None when it ran), ``rows`` (count), ``cells``
  (first cells as text, at most 24), ``changed`` (rows)
- of an answer: ``answer`` (values), ``correct``, ``answer_matches_result`` (equal to the last result read; None when
  nothing was read), ``null_as_zero`` (accepted only because the published rule reads an empty answer as 0),
  ``hash_cut_form`` (accepted only by the hash that MySQL cuts at 1,024 bytes)
- of a modification task: ``gold_state`` (the tables now hash to the gold)
- of the first turn: ``schema`` (table -> columns), ``task_values`` (values quoted in the question) and
  ``task_numbers`` (numbers outside quotes in the question)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rised.environments.base import EnvironmentFault, StepResult, Task
from rised.environments.dbbench.backend import Execution, SqliteBackend, cell_text
from rised.environments.dbbench.expert import expert_replies
from rised.environments.dbbench.generator import database_hash
from rised.environments.dbbench.judging import (
    GROUP_CONCAT_MAX_BYTES,
    answers_equal,
    clean_answer,
    hashes_equal,
    null_counts_as_zero,
)
from rised.environments.dbbench.prompts import COMPACT_SYSTEM, FULL_SYSTEM, compact_reply, first_observation, full_reply
from rised.environments.dbbench.records import Record, parse_record
from rised.environments.dbbench.replies import INVALID_TEXT, compact_values, parse_reply
from rised.environments.dbbench.settings import DbbenchSettings
from rised.environments.dbbench.sql import MAX_SQL_CHARS, read_statement, unknown_names

_MAX_CELLS = 24
_MAX_CELL_CHARS = 60
_MAX_ERROR_CHARS = 400
_CUT_ROWS = 170
_QUOTED = re.compile(r"(?<!\w)'([^']*)'(?!\w)|\"([^\"]*)\"")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])")


class DbbenchEnvironment:
    """One episode at a time. The turn limit is the episode loop's; running out of turns is a failure there."""

    def __init__(self, settings: DbbenchSettings) -> None:
        self._settings = settings
        self._backend = SqliteBackend(settings.max_vm_steps, settings.max_statement_s, settings.max_result_rows)
        self._record: Record | None = None
        self._gold_hash = ""
        self._last: Execution | None = None
        self._turn = 0
        self._done = False

    def system_prompt(self) -> str:
        return COMPACT_SYSTEM if self._settings.prompt_style == "compact" else FULL_SYSTEM

    def reset(self, task: Task, seed: int) -> str:
        """Start ``task``; nothing of this environment is random, so ``seed`` changes nothing."""
        record = parse_record(task.payload, f"task {task.task_id!r}, payload")
        self._backend.open(record.table)
        self._record, self._last, self._turn, self._done = record, None, 0, False
        self._gold_hash = self._find_gold_hash(record, task.task_id) if record.is_modification else ""
        return first_observation(record, self._settings.prompt_style)

    def _find_gold_hash(self, record: Record, task_id: str) -> str:
        """The recorded hash, or where the record has none the one that its gold SQL leads to, as published."""
        if record.answer_md5:
            return record.answer_md5
        assert record.gold_sql is not None
        execution = self._backend.execute(record.gold_sql)
        if execution.error is not None:
            raise EnvironmentFault(
                f"task {task_id!r}: the gold SQL {record.gold_sql[:80]!r} fails ({execution.error}); "
                "give the gold table hash in answer_md5"
            )
        gold = database_hash(self._backend, record.table)
        self._backend.open(record.table)
        if gold is None:
            raise EnvironmentFault(f"gold SQL destroys the table ({record.gold_sql[:80]!r}); mend the record's label")
        return gold

    def step(self, action: str) -> StepResult:
        record = self._current()
        if self._done:
            raise EnvironmentFault("DBBench: the episode is over; call reset before step")
        settings = self._settings
        form = "compact" if settings.prompt_style == "compact" else settings.reply_format
        reply = parse_reply(action, form)
        info: dict[str, Any] = {
            "reply": reply.kind,
            "style": settings.prompt_style,
            "task_type": record.kind,
            "modification_task": record.is_modification,
        }
        if self._turn == 0:
            info["schema"] = {table.table_name: table.column_names for table in record.table}
            info["task_values"] = [a or b for a, b in _QUOTED.findall(record.description) if a or b]
            info["task_numbers"] = _NUMBER.findall(_QUOTED.sub(" ", record.description))
        self._turn += 1
        if reply.kind == "operation":
            return self._operate(record, reply.text, info)
        if reply.kind == "answer":
            return self._answer(record, reply.text, info)
        if record.is_modification:
            info["gold_state"] = self._gold_state(record)[0]
        if settings.prompt_style == "compact":
            return StepResult(INVALID_TEXT, False, "", False, info=info)
        self._done = True
        return StepResult(INVALID_TEXT, True, "", False, 0.0, False, "invalid_format", info)

    def _operate(self, record: Record, sql: str, info: dict[str, Any]) -> StepResult:
        execution = self._backend.execute(sql)
        statement = read_statement(sql)
        schema = {table.table_name: table.column_names for table in record.table}
        info |= {
            "sql": sql[:MAX_SQL_CHARS],
            "statement": statement.kind[:_MAX_CELL_CHARS],
            "tables": list(statement.tables),
            "columns": list(statement.columns),
            "literals": [text[:_MAX_CELL_CHARS] for text in statement.literals[:_MAX_CELLS]],
            "aggregates": list(statement.aggregates),
            "has_filter": statement.has_filter,
            "has_limit": statement.has_limit,
            "has_star": statement.has_star,
            "catalogue": statement.catalogue,
            "unknown_names": unknown_names(statement, schema),
            "error": execution.error and execution.error[:_MAX_ERROR_CHARS],
            "error_class": execution.error_class,
            "rows": len(execution.rows),
            "cells": [cell_text(cell)[:_MAX_CELL_CHARS] for row in execution.rows for cell in row][:_MAX_CELLS],
            "changed": execution.changed,
        }
        if execution.error is None and statement.kind == "SELECT":
            self._last = execution
        if record.is_modification:
            info["gold_state"] = self._gold_state(record)[0]
        if self._settings.prompt_style == "compact":
            text = compact_reply(
                execution, statement.kind, self._settings.compact_limit_chars, self._settings.compact_rows
            )
        else:
            text = full_reply(execution, self._settings.reply_limit_chars)
        return StepResult(text, False, sql, execution.error is None, info=info)

    def _answer(self, record: Record, text: str, info: dict[str, Any]) -> StepResult:
        answer = compact_values(text) if self._settings.prompt_style == "compact" else text
        if record.is_modification:
            correct, cut_form = self._gold_state(record)
            info |= {"gold_state": correct, "hash_cut_form": cut_form}
        else:
            correct = answers_equal(answer, record.label)
            info["null_as_zero"] = null_counts_as_zero(answer, record.label)
        info |= {
            "answer": _values(answer),
            "correct": correct,
            "answer_matches_result": None if self._last is None else answers_equal(answer, _result(self._last)),
        }
        self._done = True
        return StepResult("done", True, text, True, float(correct), correct, "environment_done", info)

    def _gold_state(self, record: Record) -> tuple[bool, bool]:
        """(tables hash to the gold, only in the form that MySQL cuts at 1,024 bytes)."""
        now = database_hash(self._backend, record.table)
        if now is None:
            return False, False
        if hashes_equal(now, self._gold_hash):
            return True, False
        if max(len(self._backend.contents(table) or ()) for table in record.table) <= _CUT_ROWS:
            return False, False
        cut = database_hash(self._backend, record.table, GROUP_CONCAT_MAX_BYTES)
        matches = cut is not None and hashes_equal(cut, self._gold_hash)
        return matches, matches

    def expert(self, seed: int, noise: float) -> Iterator[str]:
        settings = self._settings
        return expert_replies(self._current(), settings.prompt_style, seed, noise, settings.max_turns)

    def close(self) -> None:
        self._backend.close()
        self._record = None

    def _current(self) -> Record:
        if self._record is None:
            raise EnvironmentFault("DBBench: no episode is running; call reset first")
        return self._record


def _result(execution: Execution) -> list[str]:
    return [cell_text(cell) for row in execution.rows for cell in row]


def _values(answer: str | list[str]) -> list[str]:
    try:
        values = clean_answer(answer)
    except (ValueError, TypeError, RecursionError):
        values = [str(answer)]
    return [value[:_MAX_CELL_CHARS] for value in values[:_MAX_CELLS]]
