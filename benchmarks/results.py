"""What a benchmark leaves behind: one Parquet file of its measurements, and the Markdown table made from it.

A row is one measurement: what one arm took in one repetition of one case. Arms of a repetition run beside each other,
so that a ratio within it holds although no two minutes of a shared machine are the same; the tables give medians and
quartiles over the repetitions. No figure of a table is typed: the documentation holds a pair of markers for each
benchmark, and what stands between them is written from the Parquet files.

    python -m benchmarks.results docs/performance.md            # writes the tables anew
    python -m benchmarks.results docs/performance.md --check    # exit code 1 if they differ from the files
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("case", pa.string(), nullable=False),
        pa.field("arm", pa.string(), nullable=False),
        pa.field("repetition", pa.int32(), nullable=False),
        pa.field("seconds", pa.float64()),
        pa.field("tokens", pa.int64()),
        pa.field("value", pa.float64()),
        pa.field("unit", pa.string(), nullable=False),
        pa.field("ratio", pa.float64()),
    ]
)
MARKER = "<!-- benchmark: {} -->"
END = "<!-- end of the table -->"
_SECTION = re.compile(r"(<!-- benchmark: (\w+) -->\n).*?(<!-- end of the table -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One arm in one repetition. ``value`` in ``unit`` is what arms are compared by.

    ``seconds`` and ``tokens`` are what it was made of, None where it was not. ``ratio``: of the base arm's value and
    this one's, so written that the benchmark's own docstring says which is above; None for the base arm.
    """

    benchmark: str
    case: str
    arm: str
    repetition: int
    unit: str
    value: float | None
    seconds: float | None = None
    tokens: int | None = None
    ratio: float | None = None


@dataclass
class Clock:
    """Seconds of a block: of the wall, and of the processor in this process and those that were named."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def clock(pids: Sequence[int] = ()) -> Iterator[Clock]:
    """Times the block it opens. ``pids``: further processes that work for it, alive all the while."""
    found = Clock()
    wall, cpu = time.perf_counter(), time.process_time()
    others = sum(map(processor_s, pids))
    try:
        yield found
    finally:
        found.wall_s, found.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        found.cpu_s += sum(map(processor_s, pids)) - others


def processor_s(pid: int) -> float:
    """Seconds of the processor that another process has used so far (Linux; in its ticks of 10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rate(benchmark: str, case: str, arm: str, repetition: int, tokens: int, seconds: float, kind: str) -> Measurement:
    """Tokens per second by one kind of clock ("wall" or "processor")."""
    return Measurement(benchmark, case, arm, repetition, f"tokens/s ({kind})", tokens / seconds, seconds, tokens)


def duration(benchmark: str, case: str, arm: str, repetition: int, seconds: float, kind: str = "wall") -> Measurement:
    """Seconds by one kind of clock."""
    return Measurement(benchmark, case, arm, repetition, f"s ({kind})", seconds, seconds)


def against(rows: Iterable[Measurement], base: str, *, inverse: bool = False) -> list[Measurement]:
    """The rows with their ratios: each arm's value over the base arm's of the same case, repetition and unit.

    ``inverse``: the base arm's value over the arm's own.
    """
    rows = list(rows)
    bases = {(r.case, r.repetition, r.unit): r.value for r in rows if r.arm == base}
    found = []
    for row in rows:
        other = bases.get((row.case, row.repetition, row.unit))
        ratio = None
        if row.arm != base and other and row.value:
            ratio = other / row.value if inverse else row.value / other
        found.append(replace(row, ratio=ratio))
    return found


def write(rows: Sequence[Measurement], folder: Path = RESULTS) -> Path:
    """One file for each benchmark (all rows are of one); replaces an earlier one."""
    names = {row.benchmark for row in rows}
    if len(names) != 1:
        raise ValueError(f"a file holds one benchmark, these rows are of {sorted(names)}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{names.pop()}.parquet"
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], SCHEMA), path, compression="zstd")
    return path


def read(benchmark: str, folder: Path = RESULTS) -> list[Measurement]:
    """The measurements of a benchmark, in the order of their writing."""
    table = pq.read_table(folder / f"{benchmark}.parquet")
    if table.schema != SCHEMA:
        raise ValueError(f"{folder / benchmark}.parquet has another schema: run the benchmark again")
    return [Measurement(**row) for row in table.to_pylist()]


def table(rows: Sequence[Measurement]) -> str:
    """Markdown: a line for each case, unit and arm; each of them in the order of first appearance."""
    lines: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in rows:
        lines.setdefault((row.case, row.unit, row.arm), []).append(row)
    cases, units = (list(dict.fromkeys(key[part] for key in lines)) for part in (0, 1))
    text = ["| case | arm | median (quartiles) | unit | ratio, median (quartiles) | repetitions |", "|" + " --- |" * 6]
    for key in sorted(lines, key=lambda key: (cases.index(key[0]), units.index(key[1]))):
        (case, unit, arm), found = key, lines[key]
        values = [r.value for r in found if r.value is not None]
        ratios = [r.ratio for r in found if r.ratio is not None]
        measured, compared = spread(values, number) or "–", spread(ratios, lambda value: f"{value:.2f}") or "–"
        text.append(f"| {case} | {arm} | {measured} | {unit} | {compared} | {len(found)} |")
    return "\n".join(text)


def spread(values: Sequence[float], shown: object) -> str:
    """Median, and both quartiles where there are at least three values."""
    show = shown if callable(shown) else str
    if not values:
        return ""
    middle: str = show(statistics.median(values))
    if len(values) < 3:
        return middle
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle} ({show(low)} to {show(high)})"


def number(value: float) -> str:
    """Three significant digits, thousands with commas; less than half a thousandth is nothing."""
    if abs(value) < 5e-4:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def rendered(text: str, folder: Path = RESULTS) -> str:
    """The document with every marked table written from its Parquet file."""

    def section(match: re.Match[str]) -> str:
        return f"{match[1]}{table(read(match[2], folder))}\n{match[3]}"

    return _SECTION.sub(section, text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=Path, help="Markdown file with markers")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the Parquet files (default: %(default)s)"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a table is not the files'")
    args = parser.parse_args(arguments)
    before = args.document.read_text(encoding="utf-8")
    after = rendered(before, args.results)
    if args.check:
        sys.exit(0 if before == after else f"{args.document}: a table is not what {args.results} holds")
    args.document.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
