"""The page in front of several experiments' reports: which table or figure of the papers was made from whose shards.

Reads the folders that the analysis of each experiment left (``<results>/<experiment>/analysis``): reports, files, and
the lists of sources. What the papers print and no experiment made is a row that says so.

    python -m analysis.index --results build/reproduction
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import AnalysisError
from analysis.report.made_from import records_text
from analysis.sources import Sources, read_sources

PAPERS: dict[str, dict[str, str]] = {
    "RISED": {
        **{f"table{i}": f"Table {i}" for i in range(1, 10)},
        **{f"figure{i}": f"Figure {i}" for i in range(2, 9)},
    },
    "ORSD": {
        **{f"orsd_table{i}": f"Table {i}" for i in (1, 2)},
        "orsd_table4": "Tables 4 and 5",
        **{f"orsd_figure{i}": f"Figure {i}" for i in (2, 3)},
    },
}
"""Paper -> module -> what it is in the paper. Figure 1 of either is a drawing."""
BEYOND = "Beyond the papers"
TEMPLATE = Path(__file__).parent / "report"


@dataclass(frozen=True, slots=True)
class Row:
    """A table or figure made from one experiment, or from none (``sources`` is None)."""

    paper: str
    place: str
    sources: Sources | None
    folder: Path | None

    @property
    def records(self) -> str:
        return records_text(self.sources) if self.sources else ""

    def links(self, page: Path) -> list[tuple[str, str]]:
        """Suffix and address of every file, relative to the page's folder."""
        if self.sources is None or self.folder is None:
            return []
        return [(name, os.path.relpath(self.folder / name, page.parent)) for name in self.sources.files]


def rows(results: Path) -> list[Row]:
    """All rows in the papers' order, then what goes beyond them.

    Raises AnalysisError where no experiment below ``results`` was analysed.
    """
    found: dict[str, list[tuple[Sources, Path]]] = {}
    for folder in sorted(results.glob("*/analysis/*")):
        for sources in read_sources([folder]):
            found.setdefault(sources.module, []).append((sources, folder))
    if not found:
        raise AnalysisError(f"no analysis below {results}: expected <experiment>/analysis/tables/<name>.sources.json")
    made = []
    for paper, places in PAPERS.items():
        for module, place in places.items():
            entries = found.pop(module, [])
            made += [Row(paper, place, *entry) for entry in entries] or [Row(paper, place, None, None)]
    made += [Row(BEYOND, sources.title, sources, folder) for entries in found.values() for sources, folder in entries]
    return made


def write(results: Path) -> list[Path]:
    """``index.html`` and the same as ``index.csv``."""
    listed = rows(results)
    page, table = results / "index.html", results / "index.csv"
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    reports = sorted(results.glob("*/analysis/report.html"))
    text = environment.get_template("index.html.j2").render(
        papers={paper: [row for row in listed if row.paper == paper] for paper in (*PAPERS, BEYOND)},
        reports=[(path.parent.parent.name, os.path.relpath(path, results)) for path in reports],
        page=page,
    )
    page.write_text(text, encoding="utf-8")
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["paper", "place", "experiment", "runs", "records", "published", "files"])
        for row in listed:
            of = row.sources
            cells = (
                [of.experiment, of.runs, row.records, " ".join(of.published), " ".join(of.files)] if of else [""] * 5
            )
            writer.writerow([row.paper, row.place, *cells])
    return [page, table]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.index", description="Page in front of several experiments' reports"
    )
    parser.add_argument("--results", type=Path, required=True, help="folder with <experiment>/analysis in it")
    options = parser.parse_args(arguments)
    try:
        for path in write(options.results):
            print(path)
    except AnalysisError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
