"""Reading refuses numbers that writing refuses: an undefined number is null, never NaN or infinite.

A shard from elsewhere may hold them, and a mean over them is no mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rised.records.errors import RecordError

_NAMES = ("rollout_id", "group_id", "name", "rubric_id")
"""Columns that identify a row, the first that a schema has."""


def refuse_non_finite(table: pa.Table, paths: Iterable[str | Path]) -> pa.Table:
    """The table, if all its real columns hold finite numbers or nulls; RecordError names file, row and how many."""
    for field in table.schema:
        if pa.types.is_floating(field.type) and pc.all(pc.is_finite(table[field.name])).as_py() is False:
            _refuse(field.name, paths)
    return table


def _refuse(column: str, paths: Iterable[str | Path]) -> None:
    for path in paths:
        whole = pq.ParquetFile(path)
        names = [name for name in _NAMES if name in whole.schema_arrow.names][:1]
        steps = [name for name in ("step",) if name in whole.schema_arrow.names]
        rows = whole.read(columns=[*names, *steps, column])
        wrong = rows.filter(pc.invert(pc.is_finite(rows[column])))
        if wrong.num_rows:
            first = wrong.slice(0, 1).to_pylist()[0]
            where = " ".join(f"{name} {first[name]}" for name in [*names, *steps])
            raise RecordError(
                f"{path}: {wrong.num_rows:,} of {rows.num_rows:,} rows have a {column} that is no finite number, the "
                f"first {where} ({first[column]}). An undefined number is null: restore the file, or write it anew."
            )
