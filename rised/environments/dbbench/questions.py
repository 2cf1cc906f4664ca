"""The question recipes, by level: each draws from a sketch and returns a draft with words and gold SQL.

A recipe neither runs SQL nor checks its result; the generator does, and asks again when a draft is degenerate.
"""

from __future__ import annotations

from collections.abc import Callable

from rised.environments.dbbench.draft import Condition, Draft, Sketch, between, compare, either, equal, one, two
from rised.environments.dbbench.sql import quote_name as q

Recipe = Callable[[Sketch], Draft]

_COUNT = ("how many {t} have {w}?", "count the {t} with {w}.", "what is the number of {t} with {w}?")
_SUM = ("what is the total {n} of {t} with {w}?", "find the sum of {n} where {w}.", "add up the {n} of {t} with {w}.")
_AVG = ("what is the average {n} of {t} with {w}?", "find the mean {n} where {w}.", "give the average {n} for {w}.")
_MAX = ("what is the highest {n} of {t} with {w}?", "find the maximum {n} where {w}.", "give the largest {n} for {w}.")
_MIN = ("what is the lowest {n} of {t} with {w}?", "find the minimum {n} where {w}.", "give the smallest {n} for {w}.")
_WORDS = {"SUM": _SUM, "AVG": _AVG, "MAX": _MAX, "MIN": _MIN}
_WHOLE = {
    "SUM": ("what is the total {n} of all {t}?", "find the sum of {n} in the table."),
    "AVG": ("what is the average {n} of all {t}?", "find the mean {n} in the table."),
    "MAX": ("what is the highest {n} in the table?", "find the maximum {n} of all {t}."),
    "MIN": ("what is the lowest {n} in the table?", "find the minimum {n} of all {t}."),
}


def _aggregate(s: Sketch, function: str, number: str) -> str:
    if function == "AVG":
        return f"ROUND(AVG({q(number)}), 2)"
    return f"SUM({q(number)})" if function == "SUM" else f"{function}({s.sortable(number)})"


def _any(s: Sketch) -> str:
    return s.rng.choice(s.numbers)


# ---- easy


def count_one(s: Sketch) -> Draft:
    c = s.rng.choice((equal, compare))(s)
    return Draft("counting", s.pick(_COUNT).format(t=s.table, w=c.words), f"SELECT COUNT(*) FROM {s.t} WHERE {c.sql}")


def aggregate_all(s: Sketch) -> Draft:
    f, n = s.rng.choice(("SUM", "MAX", "MIN")), _any(s)
    words = s.pick(_WHOLE[f]).format(t=s.table, n=n)
    return Draft(f"aggregation-{f}", words, f"SELECT {_aggregate(s, f, n)} FROM {s.t}")


def look_up(s: Sketch) -> Draft:
    c = s.rng.choice([name for name in s.columns if name != s.key])
    v = s.rng.choice(s.values(s.key))
    words = s.pick(("what is the {c} of '{v}'?", "which {c} does '{v}' have?", "give the {c} for the {k} '{v}'."))
    return Draft("other", words.format(c=c, v=v, k=s.key), f"SELECT {q(c)} FROM {s.t} WHERE {q(s.key)} = '{v}'")


def rank_all(s: Sketch) -> Draft:
    n, descending = _any(s), s.rng.random() < 0.5
    top = ("which {k} has the highest {n}?", "which {k} has the most {n}?", "give the {k} with the largest {n}.")
    low = ("which {k} has the lowest {n}?", "which {k} has the least {n}?", "give the {k} with the smallest {n}.")
    words = s.pick(top if descending else low).format(k=s.key, n=n)
    order = s.sortable(n) + (" DESC" if descending else "")
    return Draft("ranking", words, f"SELECT {q(s.key)} FROM {s.t} ORDER BY {order} LIMIT 1")


def insert_row(s: Sketch) -> Draft:
    values = [s.literal(c, s.fresh_value(c)) for c in s.columns]
    listed = ", ".join(values)
    words = s.pick(("add a row with {d}.", "insert a new record: {d}.", "a new entry must be stored: {d}."))
    return Draft("INSERT", words.format(d=listed), f"INSERT INTO {s.t} VALUES ({listed})")


def update_one(s: Sketch) -> Draft:
    c = s.rng.choice([name for name in s.columns if name != s.key])
    new = s.literal(c, s.fresh_value(c))
    v = s.rng.choice(s.values(s.key))
    words = s.pick(
        ("set {c} to {n} for the {k} '{v}'.", "change {c} to {n} where {k} is '{v}'.", "the {c} of '{v}' is now {n}.")
    )
    return Draft(
        "UPDATE", words.format(c=c, n=new, k=s.key, v=v), f"UPDATE {s.t} SET {q(c)} = {new} WHERE {q(s.key)} = '{v}'"
    )


# ---- medium


def count_two(s: Sketch) -> Draft:
    a, b = two(s)
    word = "AND" if s.rng.random() < 0.6 else "OR"
    joined = f"{a.words} {word.lower()} {b.words}"
    head = f"SELECT COUNT(*) FROM {s.t} WHERE "
    return Draft(
        "counting",
        s.pick(_COUNT).format(t=s.table, w=joined),
        f"{head}{a.sql} {word} {b.sql}",
        (head + a.sql, head + b.sql),
    )


def count_special(s: Sketch) -> Draft:
    c = one(s)
    head = f"SELECT COUNT(*) FROM {s.t}"
    return Draft("counting", s.pick(_COUNT).format(t=s.table, w=c.words), f"{head} WHERE {c.sql}", (head,))


def count_distinct(s: Sketch) -> Draft:
    c = s.rng.choice(s.texts)
    words = s.pick(("how many different {c} are there", "count the distinct {c}", "how many distinct {c} are there"))
    sql = f"SELECT COUNT(DISTINCT {q(c)}) FROM {s.t}"
    if s.rng.random() < 0.4:
        return Draft("counting", words.format(c=c) + ".", sql, (f"SELECT COUNT(*) FROM {s.t}",))
    w = compare(s)
    return Draft("counting", words.format(c=c) + f" with {w.words}?", f"{sql} WHERE {w.sql}", (sql,))


def aggregate_one(s: Sketch) -> Draft:
    f, n = s.rng.choice(("SUM", "AVG", "AVG", "MAX", "MIN")), _any(s)
    c = s.rng.choice((equal, equal, either, compare))(s)
    head = f"SELECT {_aggregate(s, f, n)} FROM {s.t}"
    return Draft(
        f"aggregation-{f}", s.pick(_WORDS[f]).format(t=s.table, n=n, w=c.words), f"{head} WHERE {c.sql}", (head,)
    )


def rank_filtered(s: Sketch) -> Draft:
    n, descending = _any(s), s.rng.random() < 0.5
    c = s.rng.choice((equal, either, compare))(s)
    adjective = s.pick(("highest", "largest") if descending else ("lowest", "smallest"))
    words = s.pick(("which {k} with {w} has the {a} {n}?", "among {t} with {w}, which {k} has the {a} {n}?"))
    order = f"ORDER BY {s.sortable(n)}{' DESC' if descending else ''} LIMIT 1"
    head = f"SELECT {q(s.key)} FROM {s.t}"
    return Draft(
        "ranking",
        words.format(k=s.key, w=c.words, t=s.table, a=adjective, n=n),
        f"{head} WHERE {c.sql} {order}",
        (f"{head} {order}",),
    )


def rank_few(s: Sketch) -> Draft:
    n, descending, k = _any(s), s.rng.random() < 0.5, s.rng.randint(2, 4)
    adjective = s.pick(("highest", "largest") if descending else ("lowest", "smallest"))
    words = s.pick(("list the {k} of the {m} {t} with the {a} {n}.", "which {m} {k} have the {a} {n}?"))
    order = f"ORDER BY {s.sortable(n)}{' DESC' if descending else ''}"
    return Draft(
        "ranking",
        words.format(k=s.key, m=k, t=s.table, a=adjective, n=n),
        f"SELECT {q(s.key)} FROM {s.t} {order} LIMIT {k}",
    )


def list_some(s: Sketch) -> Draft:
    a, b = two(s)
    joined = f"{a.words} and {b.words}"
    words = s.pick(("list the {k} of {t} with {w}.", "which {k} have {w}?", "give every {k} where {w}."))
    head = f"SELECT {q(s.key)} FROM {s.t} WHERE "
    return Draft(
        "comparison",
        words.format(k=s.key, t=s.table, w=joined),
        f"{head}{a.sql} AND {b.sql}",
        (head + a.sql, head + b.sql),
    )


def list_distinct(s: Sketch) -> Draft:
    c = s.rng.choice(s.texts)
    w = compare(s)
    words = s.pick(("which different {c} have {w}?", "list the distinct {c} where {w}.", "name each {c} once for {w}."))
    return Draft("other", words.format(c=c, w=w.words), f"SELECT DISTINCT {q(c)} FROM {s.t} WHERE {w.sql}")


def insert_named(s: Sketch) -> Draft:
    chosen = s.rng.sample(s.columns[1:], s.rng.randint(1, min(3, len(s.columns) - 1)))
    chosen = [s.key, *chosen]
    values = [s.literal(c, s.fresh_value(c)) for c in chosen]
    listed = ", ".join(f"{c} {v}" for c, v in zip(chosen, values, strict=True))
    words = s.pick(("add a row to {t} with {d}.", "insert a record with {d}.", "store a new entry: {d}."))
    names = ", ".join(map(q, chosen))
    return Draft(
        "INSERT", words.format(t=s.table, d=listed), f"INSERT INTO {s.t} ({names}) VALUES ({', '.join(values)})"
    )


_UPDATE = (
    "set {c} to {n} for {t} with {w}.",
    "change {c} to {n} where {w}.",
    "update {c} to {n} for all {t} with {w}.",
)


def update_two(s: Sketch) -> Draft:
    a, b = two(s)
    c = s.rng.choice([name for name in s.columns if name != s.key])
    new = s.literal(c, s.fresh_value(c))
    head = f"UPDATE {s.t} SET {q(c)} = {new} WHERE "
    words = s.pick(_UPDATE).format(c=c, n=new, t=s.table, w=f"{a.words} and {b.words}")
    return Draft("UPDATE", words, f"{head}{a.sql} AND {b.sql}", (head + a.sql, head + b.sql))


def update_special(s: Sketch) -> Draft:
    w = s.rng.choice((either, between, compare))(s)
    c = s.rng.choice([name for name in s.columns if name != s.key])
    new = s.literal(c, s.fresh_value(c))
    words = s.pick(_UPDATE).format(c=c, n=new, t=s.table, w=w.words)
    return Draft("UPDATE", words, f"UPDATE {s.t} SET {q(c)} = {new} WHERE {w.sql}")


# ---- hard


def rank_second(s: Sketch) -> Draft:
    n, descending = _any(s), s.rng.random() < 0.5
    place, offset = s.rng.choice((("second", 1), ("third", 2)))
    adjective = "highest" if descending else "lowest"
    words = s.pick(("which {k} has the {p} {a} {n}?", "give the {k} with the {p} {a} {n}."))
    order = f"ORDER BY {s.sortable(n)}{' DESC' if descending else ''} LIMIT 1"
    head = f"SELECT {q(s.key)} FROM {s.t} {order}"
    return Draft("ranking", words.format(k=s.key, p=place, a=adjective, n=n), f"{head} OFFSET {offset}", (head,))


def group_most(s: Sketch) -> Draft:
    c, descending = s.rng.choice(s.texts), s.rng.random() < 0.7
    adjective = s.pick(("most", "most") if descending else ("fewest", "least"))
    words = s.pick(("which {c} has the {a} {t}?", "which {c} appears in the {a} rows?"))
    order = f"COUNT(*){' DESC' if descending else ''}"
    sql = f"SELECT {q(c)} FROM {s.t} GROUP BY {q(c)} ORDER BY {order} LIMIT 1"
    return Draft("ranking", words.format(c=c, a=adjective, t=s.table), sql)


def group_total(s: Sketch) -> Draft:
    c, n, f = s.rng.choice(s.texts), _any(s), s.rng.choice(("SUM", "AVG"))
    descending = s.rng.random() < 0.6
    adjective, noun = ("highest" if descending else "lowest"), {"SUM": "total", "AVG": "average"}[f]
    words = s.pick(("which {c} has the {a} {m} {n}?", "give the {c} with the {a} {m} {n}."))
    sql = f"SELECT {q(c)} FROM {s.t} GROUP BY {q(c)} ORDER BY {f}({q(n)}){' DESC' if descending else ''} LIMIT 1"
    return Draft("ranking", words.format(c=c, a=adjective, m=noun, n=n), sql)


def group_having(s: Sketch) -> Draft:
    c, k = s.rng.choice(s.texts), s.rng.randint(2, 4)
    words = s.pick(("which {c} appear in at least {k} rows?", "list each {c} that has {k} or more {t}."))
    sql = f"SELECT {q(c)} FROM {s.t} GROUP BY {q(c)} HAVING COUNT(*) >= {k}"
    return Draft("comparison", words.format(c=c, k=k, t=s.table), sql, (f"SELECT DISTINCT {q(c)} FROM {s.t}",))


def above_average(s: Sketch) -> Draft:
    n, operator = _any(s), s.rng.choice((">", "<"))
    word = {">": "above", "<": "below"}[operator]
    words = s.pick(("how many {t} have {n} {o} the average?", "count the {t} with {n} {o} the average {n}."))
    sql = f"SELECT COUNT(*) FROM {s.t} WHERE {q(n)} {operator} (SELECT AVG({q(n)}) FROM {s.t})"
    return Draft("comparison", words.format(t=s.table, n=n, o=word), sql, (f"SELECT COUNT(*) FROM {s.t}",))


def count_three(s: Sketch) -> Draft:
    a, b = (equal(s, c) for c in s.rng.sample(s.texts, 2))
    c = compare(s)
    head = f"SELECT COUNT(*) FROM {s.t} WHERE "
    if s.rng.random() < 0.5:
        words, sql = f"{a.words} , {b.words} and {c.words}", f"{a.sql} AND {b.sql} AND {c.sql}"
        weaker = (f"{a.sql} AND {b.sql}", f"{a.sql} AND {c.sql}", f"{b.sql} AND {c.sql}")
    else:
        words, sql = f"{c.words} and either {a.words} or {b.words}", f"{c.sql} AND ({a.sql} OR {b.sql})"
        weaker = (c.sql, f"{a.sql} OR {b.sql}", f"{c.sql} AND {a.sql}")
    return Draft("counting", s.pick(_COUNT).format(t=s.table, w=words), head + sql, tuple(head + w for w in weaker))


def aggregate_two(s: Sketch) -> Draft:
    f, n = s.rng.choice(("SUM", "AVG", "MAX", "MIN")), _any(s)
    a, b = two(s)
    head = f"SELECT {_aggregate(s, f, n)} FROM {s.t} WHERE "
    words = s.pick(_WORDS[f]).format(t=s.table, n=n, w=f"{a.words} and {b.words}")
    return Draft(f"aggregation-{f}", words, f"{head}{a.sql} AND {b.sql}", (head + a.sql, head + b.sql))


def difference(s: Sketch) -> Draft:
    n, c = _any(s), equal(s)
    words = s.pick(
        (
            "what is the difference between the highest and lowest {n} for {w}?",
            "how far apart are the highest and lowest {n} with {w}?",
        )
    )
    x = s.sortable(n)
    head = f"SELECT MAX({x}) - MIN({x}) FROM {s.t}"
    return Draft("other", words.format(n=n, w=c.words), f"{head} WHERE {c.sql}", (head,))


def update_columns(s: Sketch) -> Draft:
    a, b = two(s)
    c, d = s.rng.sample([name for name in s.columns if name != s.key], 2)
    x, y = s.literal(c, s.fresh_value(c)), s.literal(d, s.fresh_value(d))
    words = s.pick(("set {c} to {x} and {d} to {y} where {w}.", "for {t} with {w}, change {c} to {x} and {d} to {y}."))
    head = f"UPDATE {s.t} SET {q(c)} = {x}, {q(d)} = {y} WHERE "
    text = words.format(c=c, x=x, d=d, y=y, t=s.table, w=f"{a.words} and {b.words}")
    return Draft("UPDATE", text, f"{head}{a.sql} AND {b.sql}", (head + a.sql, head + b.sql))


def update_by(s: Sketch) -> Draft:
    n, k, up = _any(s), s.rng.randint(2, 20), s.rng.random() < 0.6
    w: Condition = s.rng.choice((equal, either, compare))(s)
    raising = ("raise {n} by {k} for {t} with {w}.", "add {k} to {n} where {w}.")
    words = s.pick(raising if up else ("lower {n} by {k} for {t} with {w}.", "take {k} from {n} where {w}."))
    sql = f"UPDATE {s.t} SET {q(n)} = {q(n)} {'+' if up else '-'} {k}"
    return Draft("UPDATE", words.format(n=n, k=k, t=s.table, w=w.words), f"{sql} WHERE {w.sql}", (sql,))


RECIPES: dict[str, tuple[Recipe, ...]] = {
    "easy": (count_one, aggregate_all, look_up, rank_all, insert_row, update_one),
    "medium": (
        count_two, count_special, count_distinct, aggregate_one, aggregate_one, rank_filtered, rank_few, list_some,
        list_distinct, insert_named, insert_named, insert_row, update_two, update_special,
    ),
    "hard": (
        rank_second, group_most, group_total, group_having, above_average, count_three, aggregate_two, aggregate_two,
        difference, insert_named, update_columns, update_columns, update_by, update_by,
    ),
}  # fmt: skip
