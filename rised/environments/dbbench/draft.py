"""A synthetic table and a question in the making: what the question recipes draw from and fill in.

Holds the table as values and the words for conditions; the recipes are in ``questions``, the assembly in
``generator``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from rised.environments.dbbench.settings import DifficultyMix
from rised.environments.dbbench.sql import quote_name
from rised.environments.dbbench.themes import THEMES, NumberColumn, TextColumn


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in words and in SQL."""

    words: str
    sql: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before its gold answer is computed.

    ``weaker``: statements that a careless reader might run instead; their result must differ from the gold's, else
    the question would not test what it asks. ``ordered``: the statement ranks, so ties must not decide it.
    """

    kind: str
    description: str
    sql: str
    weaker: tuple[str, ...] = ()


@dataclass(slots=True)
class Sketch:
    """One synthetic table and the random stream that shapes task and wording."""

    rng: random.Random
    table: str
    key: str
    texts: list[str]
    numbers: list[str]
    columns: list[str]
    rows: list[list[str]]
    pools: dict[str, Sequence[str]]
    ranges: dict[str, NumberColumn] = field(default_factory=dict)

    def values(self, column: str) -> list[str]:
        index = self.columns.index(column)
        return [row[index] for row in self.rows]

    def row(self) -> dict[str, str]:
        return dict(zip(self.columns, self.rng.choice(self.rows), strict=True))

    @property
    def t(self) -> str:
        return quote_name(self.table)

    def sortable(self, column: str) -> str:
        """The column as SQL must write it to sort by number."""
        return quote_name(column) + (" + 0" if self.ranges[column].wide else "")

    def literal(self, column: str, value: str) -> str:
        return value if column in self.ranges else f"'{value}'"

    def fresh_value(self, column: str) -> str:
        if column in self.ranges:
            spec = self.ranges[column]
            return str(self.rng.randint(spec.low, spec.high))
        return self.rng.choice(list(self.pools[column]))

    def pick(self, phrases: Sequence[str]) -> str:
        return self.rng.choice(phrases)


def make_sketch(rng: random.Random, mix: DifficultyMix) -> Sketch:
    """Draw theme, names, columns and rows. Number columns hold distinct values where their range allows it."""
    theme = rng.choice(THEMES)
    rows_count = rng.randint(mix.rows_min, min(mix.rows_max, len(theme.key.values)))

    def name(names: tuple[str, ...]) -> str:
        return names[-1] if len(names) > 1 and rng.random() < mix.two_word_names else names[0]

    text_specs = rng.sample(theme.texts, rng.randint(2, min(3, len(theme.texts))))
    number_specs = rng.sample(theme.numbers, rng.randint(2, min(3, len(theme.numbers))))
    table = theme.tables[-1] if rng.random() < mix.two_word_names / 2 else rng.choice(theme.tables[:-1])
    key = name(theme.key.names)
    texts = {name(spec.names): spec for spec in text_specs}
    numbers = {name(spec.names): spec for spec in number_specs}
    others = [*texts, *numbers]
    rng.shuffle(others)
    columns = [key, *others]
    cells: dict[str, list[str]] = {key: rng.sample(theme.key.values, rows_count)}
    for column, text in texts.items():
        cells[column] = _words(rng, text, rows_count)
    for column, number in numbers.items():
        cells[column] = _numbers(rng, number, rows_count)
    rows = [list(row) for row in zip(*(cells[column] for column in columns), strict=True)]
    pools: dict[str, Sequence[str]] = {key: theme.key.values, **{column: spec.values for column, spec in texts.items()}}
    return Sketch(rng, table, key, list(texts), list(numbers), columns, rows, pools, numbers)


def _words(rng: random.Random, spec: TextColumn, count: int) -> list[str]:
    pool = rng.sample(spec.values, min(len(spec.values), rng.randint(3, 5)))
    return [rng.choice(pool) for _ in range(count)]


def _numbers(rng: random.Random, spec: NumberColumn, count: int) -> list[str]:
    span = range(spec.low, spec.high + 1)
    drawn = rng.sample(span, count) if len(span) >= count else [rng.choice(span) for _ in range(count)]
    return [str(value) for value in drawn]


_EQUAL = ("{c} = '{v}'", "{c} '{v}'", "{c} equal to '{v}'")
_UNEQUAL = ("{c} not '{v}'", "{c} other than '{v}'")
_COMPARE = {
    ">": ("{c} above {v}", "{c} greater than {v}", "{c} more than {v}"),
    "<": ("{c} below {v}", "{c} less than {v}", "{c} under {v}"),
    ">=": ("{c} at least {v}", "{c} of {v} or more"),
    "<=": ("{c} at most {v}", "{c} of {v} or less"),
}
_BETWEEN = ("{c} between {a} and {b}", "{c} from {a} to {b}")
_EITHER = ("{c} '{a}' or '{b}'", "{c} one of '{a}' , '{b}'", "{c} either '{a}' or '{b}'")
_START = ("{c} starting with '{v}'", "{c} beginning with '{v}'")


def equal(s: Sketch, column: str | None = None) -> Condition:
    c = column or s.rng.choice(s.texts)
    v = s.rng.choice(s.values(c))
    return Condition(s.pick(_EQUAL).format(c=c, v=v), f"{quote_name(c)} = '{v}'")


def unequal(s: Sketch) -> Condition:
    c = s.rng.choice(s.texts)
    v = s.rng.choice(s.values(c))
    return Condition(s.pick(_UNEQUAL).format(c=c, v=v), f"{quote_name(c)} != '{v}'")


def compare(s: Sketch, column: str | None = None) -> Condition:
    c = column or s.rng.choice(s.numbers)
    operator = s.rng.choice(list(_COMPARE))
    numbers = sorted(map(int, s.values(c)))
    v = s.rng.choice(numbers[1:-1]) + s.rng.choice((-1, 0, 0, 1))
    v = max(v, 0)
    return Condition(s.pick(_COMPARE[operator]).format(c=c, v=v), f"{quote_name(c)} {operator} {v}")


def between(s: Sketch, column: str | None = None) -> Condition:
    c = column or s.rng.choice(s.numbers)
    a, b = sorted(s.rng.sample(sorted(map(int, s.values(c))), 2))
    return Condition(s.pick(_BETWEEN).format(c=c, a=a, b=b), f"{quote_name(c)} BETWEEN {a} AND {b}")


def either(s: Sketch, column: str | None = None) -> Condition:
    c = column or s.rng.choice(s.texts)
    pool = sorted(set(s.values(c)))
    if len(pool) < 2:
        return equal(s, c)
    a, b = s.rng.sample(pool, 2)
    return Condition(s.pick(_EITHER).format(c=c, a=a, b=b), f"{quote_name(c)} IN ('{a}', '{b}')")


def starting(s: Sketch) -> Condition:
    c = s.key
    v = s.rng.choice(s.values(c))[:1]
    return Condition(s.pick(_START).format(c=c, v=v), f"{quote_name(c)} LIKE '{v}%'")


def two(s: Sketch) -> tuple[Condition, Condition]:
    """Two conditions on different columns."""
    text = equal(s)
    shape = s.rng.random()
    if shape < 0.45:
        return text, compare(s)
    if shape < 0.6:
        return text, between(s)
    if shape < 0.75 and len(s.numbers) > 1:
        a, b = s.rng.sample(s.numbers, 2)
        return compare(s, a), compare(s, b)
    a, b = s.rng.sample(s.texts, 2)
    return equal(s, a), equal(s, b)


def one(s: Sketch) -> Condition:
    """One condition that needs more than a plain comparison."""
    return s.rng.choice((between, either, unequal, compare, equal, starting))(s)
