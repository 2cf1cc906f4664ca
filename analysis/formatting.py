"""Printed tables: numbers as the papers print them, as Markdown, LaTeX (booktabs) and HTML-ready cells; CSV for
programs.

A :class:`PrintedTable` holds plain text; each writer escapes every text it prints (cells, column heads, group
heads, notes), so that a name such as ``grpo_opsd`` or ``SD (50%)`` is safe everywhere. The CSV beside it is the
tidy frame with separate columns for mean, std and so on. CSV text cells are written as they are: a text that begins
with ``=``, ``+`` or ``-`` is a formula to a spreadsheet program, so open these files as data, not by double click.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pandas as pd

from analysis.statistics import Interval, MeanStd
from rised.records.text import printable

MISSING = "–"
"""A value that does not exist: not run, or not printed by the paper. Never a zero."""


class Mark(StrEnum):
    """Rank of a cell within its column and group."""

    NONE = "none"
    BEST = "best"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class Cell:
    """One printed value. ``value`` is what ranks it (None: not ranked)."""

    text: str
    value: float | None = None
    mark: Mark = Mark.NONE


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under one head, ranked among themselves (the paper ranks within a backbone)."""

    head: str
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """``columns[0]`` heads the row names; all others are numbers, at the right. ``notes`` stand below.

    ``text_columns`` hold sentences, ``left_columns`` further names; both by index.
    """

    name: str
    caption: str
    columns: Sequence[str]
    groups: Sequence[Group]
    notes: Sequence[str] = field(default_factory=tuple)
    text_columns: Sequence[int] = ()
    left_columns: Sequence[int] = ()

    @property
    def lefts(self) -> set[int]:
        """Columns that are set at the left."""
        return {0, *self.text_columns, *self.left_columns}

    def __post_init__(self) -> None:
        for group in self.groups:
            for row in group.rows:
                if len(row) != len(self.columns):
                    raise ValueError(
                        f"table {self.name!r}: a row of {len(row)} cells under {len(self.columns)} columns"
                    )


def number(value: float | None, digits: int = 3) -> str:
    """Fixed digits; the missing mark for None and NaN."""
    return MISSING if _absent(value) else _minus(f"{value:.{digits}f}")


def percent(value: float | None, digits: int = 0) -> str:
    """0.5 -> "50%"."""
    return MISSING if _absent(value) else _minus(f"{value:.{digits}%}")


def points(value: float | None, digits: int = 1) -> str:
    """A difference of shares in signed percentage points: 0.0312 -> "+3.1"."""
    if value is None or _absent(value):
        return MISSING
    return _minus(f"{100 * value:+.{digits}f}")


def mean_std_text(found: MeanStd | None, digits: int = 3) -> str:
    """ "0.542 ± 0.008" as the paper prints it; the mean alone for a single run."""
    if found is None:
        return MISSING
    return number(found.mean, digits) + ("" if found.std is None else f" ± {number(found.std, digits)}")


def interval_text(interval: Interval, digits: int = 3, as_points: bool = False) -> str:
    """ "[0.412, 0.503]", or "n/a (reason)"."""
    if interval.low is None or interval.high is None:
        return f"n/a ({interval.reason})"
    show = points if as_points else number
    return f"[{show(interval.low, 1 if as_points else digits)}, {show(interval.high, 1 if as_points else digits)}]"


def p_text(value: float | None, digits: int = 3) -> str:
    """ "0.038"; a smaller p than the digits can show is "<0.001", never 0."""
    if value is not None and not _absent(value) and value < 10**-digits:
        return f"<{10**-digits:.{digits}f}"
    return number(value, digits)


def relative(value: float | None) -> str:
    """1.626 -> "1.63×"."""
    return MISSING if _absent(value) else f"{value:.2f}×"


def seconds_published(value: float | None) -> str:
    """One decimal, as the paper prints steps of minutes."""
    return number(value, 1)


def seconds(value: float | None) -> str:
    """Two decimals below 10 s (steps of a laptop), one above."""
    if value is None or _absent(value):
        return MISSING
    return number(value, 1 if abs(value) >= 10 else 2)


def rank(groups: Iterable[Group], columns: Sequence[int], largest_is_best: bool = True, digits: int = 3) -> list[Group]:
    """Mark the best and the second value of each column in each group; values equal in print share their mark.

    A group with fewer than two ranked values in a column gets no mark there: one value beats nobody.
    """
    ranked: list[Group] = []
    for group in groups:
        rows = [list(row) for row in group.rows]
        for column in columns:
            scores = [row[column].value for row in rows]
            values = [None if score is None else round(score, digits) for score in scores]
            present = [v for v in values if v is not None]
            if len(present) < 2:
                continue
            levels = sorted(set(present), reverse=largest_is_best)
            for row, value in zip(rows, values, strict=True):
                if value is None:
                    continue
                mark = Mark.BEST if value == levels[0] else Mark.SECOND if value in levels[1:2] else Mark.NONE
                row[column] = Cell(row[column].text, row[column].value, mark)
        ranked.append(Group(group.head, rows))
    return ranked


_LATEX_ESCAPES = {
    "\\": r"\textbackslash ",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde ",
    "^": r"\textasciicircum ",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "–": "--",
    "…": r"\ldots{}",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\rightarrow$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "²": r"$^2$",
    "·": r"$\cdot$",
    "‖": r"$\Vert$",
    "†": r"$\dagger$",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
}
_LATEX_GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega".split()
)
_LATEX_LATIN_CAPITALS = frozenset("alpha beta epsilon zeta eta iota kappa mu nu rho tau chi".split())
"""Greek capitals that look like Latin ones: LaTeX has no command for them."""
HEAD_WIDTH = 100
"""Characters of a group's head that stand in one line of a LaTeX table, which does not break it by itself."""


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as given; a line break becomes a space.

    pdfLaTeX stops at letters that its fonts lack: Greek is set as mathematics, and what is neither that nor European
    stands as its code point (``U+4E2D``).
    """
    return "".join(_LATEX_ESCAPES.get(character) or _latex_character(character) for character in _one_line(text))


def _latex_character(character: str) -> str:
    name = unicodedata.name(character, "")
    greek = re.fullmatch(r"GREEK (CAPITAL|SMALL) LETTER (\w+)", name)
    if greek:
        command = greek[2].lower().replace("lamda", "lambda")
        capital = greek[1] == "CAPITAL"
        if command in _LATEX_GREEK and not (capital and command in _LATEX_LATIN_CAPITALS):
            return rf"$\{command.capitalize() if capital else command}$"
    known = character.isascii() or (character <= "\u017f" and character.isalpha())
    return character if known else f"U+{ord(character):04X}"


def markdown_escape(text: str) -> str:
    """Text for a cell of a Markdown table: no column break, no tag, one line."""
    return _one_line(text).replace("<", "&lt;").replace("|", r"\|")


def to_latex(table: PrintedTable) -> str:
    """A table for the packages ``booktabs`` and ``fontenc`` (T1, for ``<`` and ``|``); best bold, second underlined."""
    marks = {Mark.NONE: "{}", Mark.BEST: r"\textbf{{{}}}", Mark.SECOND: r"\underline{{{}}}"}

    def line(cells: Sequence[Cell]) -> str:
        return " & ".join(marks[c.mark].format(latex_escape(c.text)) for c in cells) + r" \\"

    body = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_escape(table.caption)}}}",
        rf"\label{{tab:{re.sub('[^a-zA-Z0-9]+', '-', table.name)}}}",
        rf"\begin{{tabular}}{{{_alignment(table)}}}",
        r"\toprule",
        line([Cell(c) for c in table.columns]),
    ]
    for group in table.groups:
        body.append(r"\midrule")
        if group.head:
            parts = textwrap.wrap(_one_line(group.head), HEAD_WIDTH)
            span = rf"\multicolumn{{{len(table.columns)}}}{{l}}"
            body += [rf"{span}{{\emph{{{latex_escape(part)}}}}} \\" for part in parts]
        body.extend(line(row) for row in group.rows)
    body += [r"\bottomrule", r"\end{tabular}"]
    body += [rf"\par\smallskip{{\footnotesize {latex_escape(note)}}}" for note in table.notes]
    return "\n".join([*body, r"\end{table}", ""])


def _alignment(table: PrintedTable) -> str:
    """Sentences in paragraphs that share 60% of the line, names at the left, numbers at the right."""
    paragraph = rf"p{{{0.6 / max(len(table.text_columns), 1):.2f}\linewidth}}"
    return "".join(
        paragraph if i in table.text_columns else "l" if i in table.lefts else "r" for i in range(len(table.columns))
    )


def to_markdown(table: PrintedTable) -> str:
    """A pipe table; best bold, second in ``<ins>`` (Markdown has no underline), group heads as rows in italics."""
    marks = {Mark.NONE: "{}", Mark.BEST: "**{}**", Mark.SECOND: "<ins>{}</ins>"}

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(texts) + " |"

    lines = [
        f"**{markdown_escape(table.caption)}**",
        "",
        line([markdown_escape(c) for c in table.columns]),
        line(["---" if i in table.lefts else "---:" for i in range(len(table.columns))]),
    ]
    for group in table.groups:
        if group.head:
            lines.append(line([f"*{markdown_escape(group.head)}*", *[""] * (len(table.columns) - 1)]))
        lines += [line([marks[c.mark].format(markdown_escape(c.text)) for c in row]) for row in group.rows]
    if table.notes:
        lines += ["", *[f"- {markdown_escape(note)}" for note in table.notes]]
    return "\n".join([*lines, ""])


def to_csv(frame: pd.DataFrame) -> str:
    """The tidy frame as CSV with header, quoted where needed, floats as shortest round-trip text, missing empty."""
    return frame.to_csv(index=False, lineterminator="\n")


def write_table(table: PrintedTable, frame: pd.DataFrame, out: Path) -> list[Path]:
    """Write ``<name>.csv``, ``.md`` and ``.tex`` into ``out`` and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    texts = {".csv": to_csv(frame), ".md": to_markdown(table), ".tex": to_latex(table)}
    paths = []
    for suffix, text in texts.items():
        path = out / f"{table.name}{suffix}"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _absent(value: float | None) -> bool:
    return value is None or bool(pd.isna(value))


def _minus(text: str) -> str:
    """A real minus sign, and no negative zero."""
    if re.fullmatch(r"-0(\.0*)?%?", text):
        return text[1:]
    return text.replace("-", "−")


def _one_line(text: str) -> str:
    """One line without control characters, which stop LaTeX and steer terminals."""
    return printable(" ".join(text.splitlines()))
