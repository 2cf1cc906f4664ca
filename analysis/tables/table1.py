"""Table 1: does profile similarity go with transfer when the policy trains on WebShop alone?

``table1.csv``: one row per source, method, row, statistic and signal, with the number of pairs and the status.
``table1_intervals.csv``: per signal, with intervals and correlations within environments.

    python -m analysis.tables.table1 --runs results/webshop_only --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis import transfer_tables
from analysis.command import run_tables
from analysis.frames import Frames
from analysis.tables import BuiltTable

TITLE = "Table 1. WebShop-only training"


def build(frames: Frames) -> list[BuiltTable]:
    """``table1`` and ``table1_intervals``; AnalysisError if the runs trained on anything else."""
    return transfer_tables.build(frames, "table1", TITLE, "webshop", "rised_table1_webshop_only_correlation")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, TITLE, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
