"""AgentBench's DBBench record: its shape, its loader, and what makes two records the same task.

Everything that reads a record file is here. Judging and execution take the checked :class:`Record` and never look at
raw JSON again. A record that does not fit is refused with file, line, field and remedy before any episode starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from rised.environments.base import EnvironmentFault
from rised.records.text import load_json

MODIFICATIONS = ("INSERT", "UPDATE", "DELETE")
TYPES = (
    "SELECT",
    *MODIFICATIONS,
    "other",
    "counting",
    "comparison",
    "ranking",
    "aggregation-SUM",
    "aggregation-MIN",
    "aggregation-MAX",
    "aggregation-AVG",
)
MAX_ERRORS_SHOWN = 20


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Column(_Part):
    """A column. The record's own type is ignored: the benchmark creates every column as TEXT."""

    name: str


class TableInfo(_Part):
    columns: tuple[Column, ...]
    rows: tuple[tuple[str | None, ...], ...]

    @field_validator("rows", mode="before")
    @classmethod
    def _cells_as_text(cls, rows: Any) -> Any:
        """Numbers become text (records 15, 52, 193 and 208 of the standard file hold some), as MySQL's TEXT would."""
        if not isinstance(rows, list | tuple):
            return rows
        return [[_number_as_text(cell) for cell in row] if isinstance(row, list | tuple) else row for row in rows]

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {index} has {len(row)} cells, the table {len(self.columns)} columns; make them equal"
                )
        return self


class Table(_Part):
    table_name: str
    table_info: TableInfo

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.table_info.columns]


class Query(_Part):
    query: str


class LookUp(_Part):
    """[ours] A value that the question spells differently from the table; only our generated records have one."""

    column: str
    asked: str
    stored: str


def asked_sql(sql: str, look_up: LookUp) -> str:
    """The statement with the question's spelling in place of the table's."""
    return sql.replace(f"'{look_up.stored}'", f"'{look_up.asked}'")


class Record(_Part):
    """One task. ``label`` is the gold answer of a question, ``answer_md5`` the gold table hash of a modification.

    The benchmark's training file writes labels as the text of a MySQL result (``"[('12',)]"``), the others as lists.
    ``level``, ``look_up`` and ``synthetic`` are ours: generated records carry them, the benchmark's do not.
    """

    description: str
    type: tuple[str, ...]
    table: tuple[Table, ...]
    label: tuple[str, ...] | str | None = None
    answer_md5: str | None = None
    sql: Query | None = None
    add_description: str = ""
    evidence: str = ""
    level: str = ""
    look_up: LookUp | None = None
    synthetic: bool = False

    @field_validator("table", mode="before")
    @classmethod
    def _tables(cls, table: Any) -> Any:
        return [table] if isinstance(table, dict) else table

    @field_validator("label", mode="before")
    @classmethod
    def _label(cls, label: Any) -> Any:
        if isinstance(label, list | tuple):
            return [_number_as_text(item) for item in label]
        return _number_as_text(label)

    @field_validator("type")
    @classmethod
    def _known_type(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or value[0] not in TYPES:
            raise ValueError(f"{list(value)} names no known type; the first entry must be one of {', '.join(TYPES)}")
        return value

    @model_validator(mode="after")
    def _has_gold(self) -> Self:
        if not self.table:
            raise ValueError("table: the list is empty; give at least one table")
        if self.is_modification and not self.answer_md5 and self.gold_sql is None:
            raise ValueError("answer_md5: missing for a modification without gold SQL; give the gold table hash")
        if not self.is_modification and self.label is None:
            raise ValueError("label: missing for a question; give the gold answers as a list")
        return self

    @property
    def kind(self) -> str:
        """The benchmark's type: INSERT, UPDATE, DELETE, SELECT or a finer kind of question."""
        return self.type[0]

    @property
    def is_modification(self) -> bool:
        return self.kind in MODIFICATIONS

    @property
    def gold_sql(self) -> str | None:
        """The recorded statement: ``sql.query``, or for modifications the statement that stands in ``label``."""
        if self.sql is not None:
            return self.sql.query
        if self.is_modification and self.label:
            return self.label if isinstance(self.label, str) else self.label[0]
        return None


def parse_record(raw: Any, where: str) -> Record:
    """Check one raw record; :class:`EnvironmentFault` names ``where`` and every field that does not fit."""
    if not isinstance(raw, dict):
        raise EnvironmentFault(f"{where}: the record is a {type(raw).__name__}, not an object; mend it")
    try:
        return Record.model_validate(raw)
    except ValidationError as error:
        raise EnvironmentFault(f"{where}: {_problems(error)}") from None


def _problems(error: ValidationError) -> str:
    parts = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"] if not isinstance(part, int)) or "record"
        field = field.removesuffix(".str").replace("label.tuple[str, ...]", "label")
        if item["type"] == "missing":
            parts.append(f"field {field!r} is missing; add it as in AgentBench's record format")
        else:
            parts.append(f"field {field!r}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(dict.fromkeys(parts))


def load_records(path: str | Path) -> list[Record]:
    """All records of a ``.jsonl`` (one object a line) or ``.json`` (one list) file, in file order.

    Raises one :class:`EnvironmentFault` that lists every bad record in a line of its own.
    """
    path = Path(path)
    records: list[Record] = []
    faults: list[str] = []
    for where, raw, fault in _raw_records(path):
        if fault:
            faults.append(fault)
            continue
        try:
            records.append(parse_record(raw, where))
        except EnvironmentFault as error:
            faults.append(str(error))
    if faults:
        shown = "\n".join(faults[:MAX_ERRORS_SHOWN])
        more = f"\n… and {len(faults) - MAX_ERRORS_SHOWN} more" if len(faults) > MAX_ERRORS_SHOWN else ""
        raise EnvironmentFault(shown + more)
    if not records:
        raise EnvironmentFault(f"{path}: holds no records; give an AgentBench DBBench file")
    return records


def _raw_records(path: Path) -> Iterator[tuple[str, Any, str | None]]:
    """(where, raw record, None), or (where, None, fault) for text that is not JSON."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise EnvironmentFault(f"{path}: is not UTF-8 text (byte {error.start}); convert the file") from error
    if path.suffix == ".json":
        try:
            listed = load_json(text)
        except json.JSONDecodeError as error:
            raise EnvironmentFault(f"{path}, line {error.lineno}: no JSON ({error.msg}); mend the file") from error
        if not isinstance(listed, list):
            raise EnvironmentFault(f"{path}: holds a {type(listed).__name__}, not a list of records; mend it")
        yield from ((f"{path}, record {index}", raw, None) for index, raw in enumerate(listed))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield where, load_json(line), None
        except json.JSONDecodeError as error:
            yield where, None, f"{where}: no JSON ({error.msg} at column {error.colno}); mend or re-download the line"


def content_hash(record: Record) -> str:
    """SHA-256 over what makes the task: question, kind and tables. Gold answers follow from them and stay out."""
    content = [record.description, record.kind, [table.model_dump(mode="json") for table in record.table]]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
