"""Our own DBBench tasks: seeded, in AgentBench's record format, synthetic and marked so.

The generator draws a sketch and a draft, computes the gold through the same backend and judging that score the
policy, and throws away what is degenerate. Train, validation and the demonstrations (split ``sft``) never share a task:
a task's content hash decides which of them it may belong to, whatever the seeds are.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator

from rised.environments.base import EnvironmentFault
from rised.environments.dbbench.backend import Execution, SqliteBackend, cell_text
from rised.environments.dbbench.draft import Draft, Sketch, make_sketch
from rised.environments.dbbench.judging import combined_hash, table_hash
from rised.environments.dbbench.questions import (
    RECIPES,
    aggregate_one,
    aggregate_two,
    count_one,
    count_two,
    difference,
    list_some,
    rank_filtered,
)
from rised.environments.dbbench.records import Column, LookUp, Query, Record, Table, TableInfo, asked_sql, content_hash
from rised.environments.dbbench.settings import DifficultyMix
from rised.environments.dbbench.sql import quote_name
from rised.environments.dbbench.themes import RESPELLINGS

MAX_ANSWERS = 5
MAX_CHANGED_ROWS = 12
_SHARES = {"validation": range(0, 64), "sft": range(64, 160), "train": range(160, 256)}
"""Which first bytes of a content hash belong to which split; ``sft`` is for demonstrations."""
_MAX_TRIES = 400
_LOOK_UP_RECIPES = (count_one, count_two, aggregate_one, aggregate_two, rank_filtered, list_some, difference)


def split_of(digest: str) -> str:
    """The one split that a task of this content hash may belong to."""
    return next(split for split, bytes_ in _SHARES.items() if int(digest[:2], 16) in bytes_)


def generate(mix: DifficultyMix, split: str, count: int, seed: int) -> Iterator[tuple[Record, str, int]]:
    """``count`` tasks of ``split`` as (record, content hash, task seed), no two of equal content.

    The i-th task depends on (mix, split, seed) and on the tasks before it only through the rule against repeats.
    """
    if split not in _SHARES:
        raise EnvironmentFault(f"DBBench: no generated split {split!r}; there are {', '.join(_SHARES)}")
    seen: set[str] = set()
    for index in range(count):
        for attempt in range(_MAX_TRIES):
            rng = random.Random(f"dbbench/{seed}/{split}/{index}/{attempt}")
            record = _try_record(rng, mix, split)
            if record is None:
                continue
            digest = content_hash(record)
            if digest in seen:
                continue
            seen.add(digest)
            yield record, digest, int.from_bytes(hashlib.sha256(f"{seed}/{split}/{index}".encode()).digest()[:4], "big")
            break
        else:
            raise EnvironmentFault(f"no new {split} task {index} in {_MAX_TRIES} tries; ask for fewer or widen mix")


def _try_record(rng: random.Random, mix: DifficultyMix, split: str) -> Record | None:
    """One candidate, or None when it is degenerate or belongs to another split."""
    level = rng.choices(("easy", "medium", "hard"), (mix.easy, mix.medium, mix.hard))[0]
    look_first = rng.random() < mix.look_first
    sketch = make_sketch(rng, mix)
    recipe = rng.choice(_LOOK_UP_RECIPES if look_first else RECIPES[level])
    draft = recipe(sketch)
    look_up = None
    if look_first:
        respelled = _respell(sketch, draft)
        if respelled is None:
            return None
        (draft, look_up), level = respelled, "hard"
    record = _record(sketch, draft, level, look_up)
    if split_of(content_hash(record)) != split:
        return None
    return _with_gold(record, draft)


def _record(sketch: Sketch, draft: Draft, level: str, look_up: LookUp | None) -> Record:
    names = ",".join(sketch.columns)
    info = TableInfo(
        columns=tuple(Column(name=name) for name in sketch.columns), rows=tuple(tuple(row) for row in sketch.rows)
    )
    modifies = draft.kind in ("INSERT", "UPDATE")
    return Record(
        description=draft.description,
        type=(draft.kind,),
        table=(Table(table_name=sketch.table, table_info=info),),
        label=(draft.sql,) if modifies else (),
        sql=None if modifies else Query(query=draft.sql),
        add_description=f"The name of this table is {sketch.table}, and the headers of this table are {names}.",
        level=level,
        look_up=look_up,
        synthetic=True,
    )


def _respell(sketch: Sketch, draft: Draft) -> tuple[Draft, LookUp] | None:
    """Spell one column's values differently in the table than in the question; None when the draft does not suit."""
    column = next((c for c in sketch.texts if f"{quote_name(c)} = '" in draft.sql), None)
    if column is None or draft.sql.count(quote_name(column)) != 1:
        return None
    found = re.search(re.escape(quote_name(column)) + r" = '([^']*)'", draft.sql)
    assert found is not None
    asked = found.group(1)
    pattern = sketch.rng.choice(RESPELLINGS)
    stored = pattern.format(v=asked)
    index = sketch.columns.index(column)
    for row in sketch.rows:
        row[index] = pattern.format(v=row[index])
    old, new = f"{quote_name(column)} = '{asked}'", f"{quote_name(column)} = '{stored}'"
    weaker = tuple(sql.replace(old, new) for sql in draft.weaker)
    changed = Draft(draft.kind, draft.description, draft.sql.replace(old, new), weaker)
    return changed, LookUp(column=column, asked=asked, stored=stored)


def _with_gold(record: Record, draft: Draft) -> Record | None:
    """The record with its gold answer or gold hash, or None when the draft is degenerate."""
    backend = SqliteBackend()
    try:
        if record.is_modification:
            digest = _modification_hash(backend, record, draft)
            return None if digest is None else record.model_copy(update={"answer_md5": f"[('{digest}',)]"})
        labels = _answer(backend, record, draft)
        return None if labels is None else record.model_copy(update={"label": labels})
    finally:
        backend.close()


def _answer(backend: SqliteBackend, record: Record, draft: Draft) -> tuple[str, ...] | None:
    backend.open(record.table)
    gold = backend.execute(draft.sql)
    if gold.error or not 1 <= len(gold.rows) <= MAX_ANSWERS or any(row[0] is None for row in gold.rows):
        return None
    if record.look_up is not None and not _finds_nothing(backend.execute(asked_sql(draft.sql, record.look_up))):
        return None
    labels = tuple(cell_text(row[0]) for row in gold.rows)
    if len(set(labels)) < len(labels) or labels == ("0",):
        return None
    if any(_same_rows(gold, backend.execute(sql)) for sql in draft.weaker) or _has_tie(backend, draft.sql, gold):
        return None
    return labels


def _finds_nothing(execution: Execution) -> bool:
    return execution.error is None and all(cell in (None, 0) for row in execution.rows for cell in row)


def _same_rows(a: Execution, b: Execution) -> bool:
    return sorted(map(str, a.rows)) == sorted(map(str, b.rows))


def _has_tie(backend: SqliteBackend, sql: str, gold: Execution) -> bool:
    """Whether equal values at the cut decide a ranking: then another order of the rows gives another answer."""
    head, limit, tail = sql.rpartition(" LIMIT ")
    if not limit:
        return False
    return any(backend.execute(f"{head}, rowid{way} LIMIT {tail}").rows != gold.rows for way in ("", " DESC"))


def _modification_hash(backend: SqliteBackend, record: Record, draft: Draft) -> str | None:
    before = combined_hash([table_hash(record.table[0].table_info.rows)])
    backend.open(record.table)
    gold = backend.execute(draft.sql)
    if gold.error or not 1 <= gold.changed <= MAX_CHANGED_ROWS:
        return None
    after = database_hash(backend, record.table)
    if after is None or after == before:
        return None
    for sql in draft.weaker:
        backend.open(record.table)
        backend.execute(sql)
        if database_hash(backend, record.table) == after:
            return None
    return after


def database_hash(backend: SqliteBackend, tables: tuple[Table, ...], max_bytes: int | None = None) -> str | None:
    """Combined hash of the record's tables as they stand; None when one of them no longer exists."""
    hashes: list[str | None] = []
    for table in tables:
        rows = backend.contents(table)
        if rows is None:
            return None
        hashes.append(table_hash(rows, max_bytes))
    return combined_hash(hashes)
