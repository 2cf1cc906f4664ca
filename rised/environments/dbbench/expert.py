"""The expert of DBBench: gold SQL, then the answer; on request with detours that it recovers from.

It is the source of warm-start transcripts. Generated records are always solved; of the benchmark's own records those
whose recorded SQL works.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from rised.environments.dbbench.judging import clean_answer
from rised.environments.dbbench.records import Record, asked_sql
from rised.environments.dbbench.replies import write_answer, write_operation
from rised.environments.dbbench.sql import quote_name, read_statement
from rised.environments.dbbench.themes import THEMES

DONE = "done"
PREVIEW_ROWS = 3


def expert_replies(record: Record, style: str, seed: int, noise: float, max_turns: int) -> Iterator[str]:
    """Replies that solve ``record``. With ``noise`` each kind of detour appears with that chance, turns permitting.

    Detours: a preview of the table, a column that does not exist, a malformed reply (compact style only: elsewhere it
    would end the episode), and after a modification a query that verifies it. A value that the table spells
    differently is always met the natural way: the question's spelling first, then the stored values, then the gold.
    """
    rng = random.Random(f"expert/{seed}")
    gold = record.gold_sql
    needed = 2 if record.look_up is None else 4
    detours = [] if gold is None else _detours(record, gold, style, rng, noise)[: max(0, max_turns - needed)]
    verify = [text for place, text in detours if place == "after"]
    yield from (text for place, text in detours if place == "before")
    if gold is not None:
        if record.look_up is not None:
            look = record.look_up
            yield write_operation(asked_sql(gold, look), style)
            table = quote_name(record.table[0].table_name)
            yield write_operation(f"SELECT DISTINCT {quote_name(look.column)} FROM {table}", style)
        yield write_operation(gold, style)
    yield from verify
    yield write_answer([DONE] if record.is_modification else _labels(record), style)


def _labels(record: Record) -> list[str]:
    return clean_answer(record.label) if isinstance(record.label, str) else list(record.label or ())


def _detours(record: Record, gold: str, style: str, rng: random.Random, noise: float) -> list[tuple[str, str]]:
    """(place, reply) in order of appearance. None of them uses a spelling that only the table knows."""
    gold = gold if record.look_up is None else asked_sql(gold, record.look_up)
    table = quote_name(record.table[0].table_name)
    found: list[tuple[str, str]] = []
    draws = {name: rng.random() < noise for name in ("preview", "wrong", "malformed", "verify")}
    if draws["preview"]:
        found.append(("before", write_operation(f"SELECT * FROM {table} LIMIT {PREVIEW_ROWS}", style)))
    if draws["wrong"] and (wrong := _wrong_column(record, gold, rng)):
        found.append(("before", write_operation(wrong, style)))
    if draws["malformed"] and style == "compact":
        found.append(("before", rng.choice((gold, f"query: {gold}", "answer"))))
    if draws["verify"] and record.is_modification:
        found.append(("after", write_operation(_verification(record, gold, table), style)))
    return found


def _wrong_column(record: Record, gold: str, rng: random.Random) -> str | None:
    """The gold with one of its columns exchanged for one that the table lacks."""
    own = {name.lower() for name in record.table[0].column_names}
    used = [name for name in read_statement(gold).columns if name.lower() in own]
    themes = [name for spec in THEMES for column in spec.texts for name in column.names]
    themes += [name for spec in THEMES for column in spec.numbers for name in column.names]
    foreign = [name for name in themes if name.lower() not in own]
    if not used:
        return None
    old, new = quote_name(rng.choice(used)), quote_name(rng.choice(foreign))
    return re.sub(rf"(?<![\w'`]){re.escape(old)}(?![\w'`])", lambda _: new, gold, count=1)


def _verification(record: Record, gold: str, table: str) -> str:
    """A query that shows the rows a modification touched: the updated columns' new values, or the new row."""
    statement = read_statement(gold)
    first = quote_name(record.table[0].column_names[0])
    if statement.kind == "INSERT" and statement.literals:
        return f"SELECT * FROM {table} WHERE {first} = '{statement.literals[0]}'"
    head, where, condition = gold.rstrip("; ").partition(" WHERE ")
    assigned = head.partition(" SET ")[2]
    if statement.columns and quote_name(statement.columns[0]) in condition and assigned.count("=") == 1:
        condition = assigned
    return f"SELECT * FROM {table} WHERE {condition}" if where else f"SELECT * FROM {table} LIMIT {PREVIEW_ROWS}"
