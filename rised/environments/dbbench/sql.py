"""What a statement is, and how MySQL's wording becomes SQLite's. Parsing is sqlglot's.

The benchmark speaks MySQL to tables whose columns are all TEXT. SQLite compares TEXT with a bare number as text, MySQL
as numbers, so such comparisons are rewritten; the schema statements SHOW and DESCRIBE become queries of the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite

MAX_SQL_CHARS = 8_000
MAX_NESTING = 60
"""Parentheses deeper than this are not parsed: sqlglot descends by recursion."""


class StrictQuotes(SQLite):
    """SQLite written with backticks: a double-quoted unknown name would silently become a string there."""

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS = ["`", '"', ("[", "]")]


@dataclass(frozen=True, slots=True)
class Statement:
    """What the parser saw. ``sqlite`` is the translation, or None when there is none (then the raw text is run).

    ``count`` is the number of statements in the text. Names are as written, in order of appearance, without repeats.
    """

    count: int
    kind: str
    sqlite: str | None
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    literals: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()
    has_filter: bool = False
    has_limit: bool = False
    has_star: bool = False
    catalogue: bool = False


_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_NUMERIC = (exp.Count, exp.Sum, exp.Avg, exp.Round, exp.Add, exp.Sub, exp.Mul, exp.Div)
_CATALOGUE_WORDS = ("sqlite_master", "sqlite_schema", "information_schema", "pragma_")


@lru_cache(maxsize=4096)
def read_statement(text: str) -> Statement:
    """Parse MySQL text. Text that sqlglot cannot read yields a statement of the kind of its first word.

    On malformed text sqlglot raises more than its own errors (IndexError, AttributeError), so all count.
    """
    first = text.split(None, 1)[0].upper().rstrip(";(") if text.strip() else ""
    unread = Statement(count=_count_by_hand(text), kind=first, sqlite=None)
    if not first or len(text) > MAX_SQL_CHARS or text.count("(") > MAX_NESTING:
        return unread
    try:
        trees = [tree for tree in sqlglot.parse(text, dialect="mysql") if tree is not None and not _is_remark(tree)]
        if len(trees) != 1:
            return Statement(count=len(trees), kind=first, sqlite=None)
        return _describe(trees[0], first)
    except Exception:
        return unread


def _is_remark(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Semicolon)


def _describe(tree: exp.Expr, first: str) -> Statement:
    catalogue_query = _catalogue_query(tree, first)
    if catalogue_query is not None:
        return Statement(count=1, kind=first, sqlite=catalogue_query, catalogue=True)
    nodes = list(tree.walk(bfs=False))
    tables = _unique(node.name for node in nodes if isinstance(node, exp.Table))
    ctes = {node.alias.lower() for node in nodes if isinstance(node, exp.CTE)}
    columns = [node.name for node in nodes if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star)]
    if isinstance(tree, exp.Insert) and isinstance(tree.this, exp.Schema):
        columns = [part.name for part in tree.this.expressions] + columns
    kind = "SELECT" if isinstance(tree, exp.Query) else tree.key.upper()
    stars = [node for node in nodes if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count)]
    return Statement(
        count=1,
        kind=kind,
        tables=tuple(name for name in tables if name.lower() not in ctes),
        columns=_unique(columns),
        aliases=_unique(_aliases(nodes)),
        literals=_unique(node.this for node in nodes if isinstance(node, exp.Literal)),
        aggregates=_unique(node.key.upper() for node in nodes if isinstance(node, exp.AggFunc)),
        has_filter=any(isinstance(node, exp.Where | exp.Having) for node in nodes),
        has_limit=any(isinstance(node, exp.Limit) for node in nodes),
        has_star=bool(stars),
        catalogue=any(word in name.lower() for name in tables for word in _CATALOGUE_WORDS),
        sqlite=_translate(tree),
    )


def _aliases(nodes: Iterable[exp.Expr]) -> Iterator[str]:
    """Column names that the statement itself introduces."""
    for node in nodes:
        if isinstance(node, exp.Alias):
            yield node.alias
        elif isinstance(node, exp.TableAlias):
            yield from (column.name for column in node.args.get("columns") or ())


def _translate(tree: exp.Expr) -> str | None:
    """SQLite's wording, None where there is none. The tree is used up: it is changed in place.

    What SQLite's dialect lacks (SHOW INDEX) comes out as empty text, which would run and do nothing.
    """
    try:
        text = tree.transform(_compare_as_mysql, copy=False).sql(dialect=StrictQuotes, copy=False)
    except Exception:
        return None
    return text if text.strip() else None


def _is_number(node: exp.Expr | None) -> bool:
    if isinstance(node, exp.Neg):
        node = node.this
    return isinstance(node, exp.Literal) and not node.is_string


def _is_figure(node: exp.Expr | None) -> bool:
    """A subquery of one computed number."""
    if not isinstance(node, exp.Subquery) or not isinstance(node.this, exp.Select):
        return False
    selected = node.this.expressions
    return len(selected) == 1 and isinstance(selected[0].unalias(), _NUMERIC)


def _as_number(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=exp.Add(this=node.copy(), expression=exp.Literal.number(0)))


def _compare_as_mysql(node: exp.Expr) -> exp.Expr:
    """A column beside a bare number, or a number beside a quoted one, compares numerically in MySQL.

    The assignments of an UPDATE look like comparisons to the parser and stay as they are.
    """
    if isinstance(node, _COMPARISONS):
        if isinstance(node.parent, exp.Update) and node.arg_key == "expressions":
            return node
        for side, other in (("this", "expression"), ("expression", "this")):
            operand, against = node.args[side], node.args[other]
            quoted = isinstance(operand, exp.Literal) and operand.is_string and isinstance(against, _NUMERIC)
            if quoted or (isinstance(operand, exp.Column) and (_is_number(against) or _is_figure(against))):
                node.set(side, _as_number(operand))
    elif isinstance(node, exp.In) and isinstance(node.this, exp.Column):
        if node.expressions and all(map(_is_number, node.expressions)):
            node.set("this", _as_number(node.this))
    elif isinstance(node, exp.Between) and isinstance(node.this, exp.Column):
        if _is_number(node.args["low"]) and _is_number(node.args["high"]):
            node.set("this", _as_number(node.this))
    return node


def _catalogue_query(tree: exp.Expr, first: str) -> str | None:
    """SHOW TABLES, SHOW COLUMNS FROM t and DESCRIBE t as queries of SQLite's catalogue."""
    if isinstance(tree, exp.Describe):
        return _columns_query(tree.this.name) if isinstance(tree.this, exp.Table) else None
    if isinstance(tree, exp.Show) or first == "SHOW":
        what = tree.name.upper()
        if what == "TABLES":
            return "SELECT name FROM sqlite_master WHERE type = 'table'"
        if what == "COLUMNS" and tree.args.get("target") is not None:
            return _columns_query(tree.args["target"].name)
    return None


def _columns_query(table: str) -> str:
    quoted = table.replace("'", "''")
    return f"SELECT name, type FROM pragma_table_info('{quoted}')"


def _count_by_hand(text: str) -> int:
    """Statements in text that the parser refused: parts between semicolons outside quotes."""
    parts, quote, filled = 0, "", False
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote, filled = char, True
        elif char == ";":
            parts, filled = parts + filled, False
        elif not char.isspace():
            filled = True
    return parts + filled


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def unknown_names(statement: Statement, schema: Mapping[str, Sequence[str]]) -> list[str]:
    """Tables and columns of the statement that the schema (table -> columns) lacks; SQL names ignore case."""
    tables = {name.lower() for name in schema}
    known = {column.lower() for columns in schema.values() for column in columns}
    known |= {alias.lower() for alias in statement.aliases} | {"rowid"}
    if statement.catalogue or statement.kind not in {"SELECT", "INSERT", "UPDATE", "DELETE"}:
        return []
    missing = [name for name in statement.tables if name.lower() not in tables]
    return missing + [name for name in statement.columns if name.lower() not in known]


def quote_name(name: str) -> str:
    """A name as MySQL needs it: bare where that is possible, else in backticks."""
    if name.isidentifier() and name.isascii() and name.upper() not in _RESERVED:
        return name
    return "`" + name.replace("`", "``") + "`"


_RESERVED = frozenset("ORDER GROUP TABLE INDEX KEY RANK FROM TO BY SELECT WHERE YEAR_MONTH CHANGE CONDITION".split())
