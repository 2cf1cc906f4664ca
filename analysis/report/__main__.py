"""Write the report; ``--out`` is a folder (it gets ``report.html``) or the name of an HTML file.

python -m analysis.report --runs results/laptop_grid --out build
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.command import parser, run
from analysis.frames import Frames
from analysis.registry import FIGURES, TABLES, modules
from analysis.report.page import render
from analysis.sources import read_sources


def main(arguments: Sequence[str] | None = None) -> int:
    def make(frames: Frames, options: argparse.Namespace) -> list[Path]:
        path = options.out if options.out.suffix == ".html" else options.out / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        sources = read_sources(options.made_from)
        path.write_text(render(frames, options.tables, options.figures, sources), encoding="utf-8")
        return [path]

    made = parser("The report as one HTML file")
    made.add_argument("--tables", nargs="*", choices=modules("tables"), default=TABLES, help="tables by module name")
    made.add_argument("--figures", nargs="*", choices=modules("figures"), default=FIGURES, help="figures likewise")
    made.add_argument(
        "--made-from",
        nargs="*",
        type=Path,
        default=[],
        help="folders of tables and figures, to say what each was made of",
    )
    return run(make, arguments, made)


if __name__ == "__main__":
    raise SystemExit(main())
