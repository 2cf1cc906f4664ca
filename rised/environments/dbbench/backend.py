"""Where statements run: the backend's interface and the embedded one, SQLite in memory.

A backend holds one episode's database. Model-written SQL is confined: an authoriser refuses other files, extensions
and settings; an instruction budget (which, unlike a clock, makes every run end alike), result and size limits bound
the rest. A MariaDB server would be a second class behind :class:`Backend`.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rised.environments.base import EnvironmentFault
from rised.environments.dbbench.records import Table
from rised.environments.dbbench.sql import read_statement

Cell = str | int | float | bytes | None


@dataclass(frozen=True, slots=True)
class Execution:
    """What one text did. ``error`` is None when it ran; ``error_class`` is one of :data:`ERROR_CLASSES`.

    ``rows`` are the rows read (empty for modifications), ``changed`` the rows that were inserted, updated or deleted,
    ``cut`` says that more rows were there than the limit lets through.
    """

    rows: tuple[tuple[Cell, ...], ...] = ()
    changed: int = 0
    cut: bool = False
    error: str | None = None
    error_class: str | None = None


ERROR_CLASSES = (
    "syntax",
    "no_such_column",
    "no_such_table",
    "several_statements",
    "not_allowed",
    "limit",
    "empty",
    "other",
)


class Backend(Protocol):
    """One database per episode."""

    def open(self, tables: Sequence[Table]) -> None:
        """A fresh database with these tables, every column TEXT."""
        ...

    def execute(self, sql: str) -> Execution:
        """Run one statement; errors come back as text, never as exceptions."""
        ...

    def contents(self, table: Table) -> list[tuple[str | None, ...]] | None:
        """The table's rows, in the record's columns, as text; None when the policy destroyed it."""
        ...

    def close(self) -> None: ...


_TICK = 1_000
_MAX_HEAP_BYTES = 192 * 2**20
"""SQLite's heap limit. All connections of the process share it, and a worker process holds dozens of episodes."""
_FULL_DATABASES = 64
"""So many databases at their size limit take half of the heap; the rest is for statements at work."""
_PAGE_BYTES = 4_096
_MAX_PAGES = _MAX_HEAP_BYTES // (2 * _FULL_DATABASES * _PAGE_BYTES)
_MAX_CONTENT_ROWS = 100_000
_MAX_RESULT_CHARS = 10_000_000
"""Of the cells of one result: rows of many long cells would take gigabytes that SQLite's limits do not count."""
_HARMLESS_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "database_list"}
_DENIED_FUNCTIONS = {"load_extension", "random", "randomblob", "current_timestamp", "current_date", "current_time"}
_CLOCK = re.compile(r"'\s*now\s*'|\b(?:date|time|datetime|julianday|unixepoch|strftime)\s*\(\s*\)", re.IGNORECASE)
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_CREATE_VIEW,
    sqlite3.SQLITE_DROP_TABLE,
    sqlite3.SQLITE_DROP_INDEX,
    sqlite3.SQLITE_DROP_VIEW,
    sqlite3.SQLITE_ALTER_TABLE,
    sqlite3.SQLITE_REINDEX,
}
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}


def _authorise(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action in _ALLOWED:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if (second or "").lower() in _DENIED_FUNCTIONS else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _HARMLESS_PRAGMAS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_CREATE_VTABLE and (first or "").lower().startswith("pragma_"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


class SqliteBackend:
    """SQLite in memory, MySQL's dialect through sqlglot, the raw text where the translation does not run.

    ``max_vm_steps``: instructions one statement may take. ``max_statement_s``: wall-clock net below it, seconds.
    """

    def __init__(self, max_vm_steps: int = 2_000_000, max_statement_s: float = 20.0, max_rows: int = 500) -> None:
        self._max_ticks = max(1, max_vm_steps // _TICK)
        self._max_statement_s = max_statement_s
        self._max_rows = max_rows
        self._connection: sqlite3.Connection | None = None
        self._ticks = 0
        self._deadline = 0.0

    def open(self, tables: Sequence[Table]) -> None:
        self.close()
        connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.execute(f"PRAGMA max_page_count = {_MAX_PAGES}")
            connection.execute(f"PRAGMA hard_heap_limit = {_MAX_HEAP_BYTES}")
            connection.execute("PRAGMA temp_store = MEMORY")
            for table in tables:
                _create(connection, table)
        except sqlite3.Error as error:
            connection.close()
            names = ", ".join(table.table_name for table in tables)
            raise EnvironmentFault(f"table {names!r} cannot be built in SQLite ({error}); mend the record") from error
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        connection.set_authorizer(_authorise)
        connection.set_progress_handler(self._on_tick, _TICK)
        self._connection = connection

    def _on_tick(self) -> int:
        self._ticks += 1
        return int(self._ticks > self._max_ticks or time.monotonic() > self._deadline)

    def execute(self, sql: str) -> Execution:
        statement = read_statement(sql)
        if statement.count == 0:
            return Execution(error="empty query", error_class="empty")
        if statement.count > 1:
            return Execution(error="only one statement at a time", error_class="several_statements")
        if _CLOCK.search(sql):
            return Execution(error="the clock is not available", error_class="not_allowed")
        if statement.sqlite is None:
            return self._run(sql)
        execution = self._run(statement.sqlite)
        if execution.error_class in {"syntax", "other"} and statement.sqlite != sql:
            raw = self._run(sql)
            return raw if raw.error is None else execution
        return execution

    def _run(self, sql: str) -> Execution:
        connection = self._require()
        self._ticks = 0
        self._deadline = time.monotonic() + self._max_statement_s
        before = connection.total_changes
        try:
            cursor = connection.execute(sql)
            rows, cut = _fetch(cursor, self._max_rows)
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            return _failure(error)
        return Execution(
            rows=tuple(rows),
            changed=connection.total_changes - before,
            cut=cut,
        )

    def contents(self, table: Table) -> list[tuple[str | None, ...]] | None:
        connection = self._require()
        self._ticks = 0
        self._deadline = time.monotonic() + self._max_statement_s
        columns = ", ".join(_quote(name) for name in table.column_names)
        try:
            rows = connection.execute(f"SELECT {columns} FROM {_quote(table.table_name)}").fetchmany(_MAX_CONTENT_ROWS)
        except sqlite3.Error:
            return None
        return [tuple(None if cell is None else cell_text(cell) for cell in row) for row in rows]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _require(self) -> sqlite3.Connection:
        if self._connection is None:
            raise EnvironmentFault("DBBench: no database is open; call reset before step")
        return self._connection


def _fetch(cursor: sqlite3.Cursor, max_rows: int) -> tuple[list[tuple[Cell, ...]], bool]:
    """The first rows within the limits, and whether there are more."""
    rows: list[tuple[Cell, ...]] = []
    chars = 0
    for row in cursor:
        chars += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if len(rows) == max_rows or chars > _MAX_RESULT_CHARS:
            return rows, True
        rows.append(row)
    return rows, False


def cell_text(cell: Cell) -> str:
    """A cell as text, as MySQL's client would show it."""
    if cell is None:
        return "null"
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _create(connection: sqlite3.Connection, table: Table) -> None:
    columns = table.column_names
    declared = ", ".join(f"{_quote(name)} TEXT COLLATE NOCASE" for name in columns)
    connection.execute(f"CREATE TABLE {_quote(table.table_name)} ({declared})")
    marks = ", ".join("?" * len(columns))
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO {_quote(table.table_name)} VALUES ({marks})", table.table_info.rows)
    connection.execute("COMMIT")


def _failure(error: Exception) -> Execution:
    text = str(error)
    lowered = text.lower()
    if isinstance(error, MemoryError):
        return Execution(error="the statement needs too much memory", error_class="limit")
    if "interrupted" in lowered:
        return Execution(error="the statement took too long and was stopped", error_class="limit")
    if "too big" in lowered or "too large" in lowered or "is full" in lowered or "too many" in lowered:
        return Execution(error=text, error_class="limit")
    if "not authorized" in lowered or "prohibited" in lowered:
        return Execution(error="not allowed here", error_class="not_allowed")
    if "no such column" in lowered or "has no column" in lowered:
        return Execution(error=text, error_class="no_such_column")
    if "no such table" in lowered:
        return Execution(error=text, error_class="no_such_table")
    if "one statement at a time" in lowered:
        return Execution(error="only one statement at a time", error_class="several_statements")
    if "syntax error" in lowered or "incomplete input" in lowered or "unrecognized token" in lowered:
        return Execution(error=text, error_class="syntax")
    return Execution(error=text, error_class="other")
