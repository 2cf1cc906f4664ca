"""Table 7: does profile similarity go with transfer when the policy trains on DBBench alone?

``table7.csv``: one row per source, method, row, statistic and signal, with the number of pairs and the status.
``table7_intervals.csv``: per signal, with intervals and correlations within environments.

    python -m analysis.tables.table7 --runs results/dbbench_only --out build/tables
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis import transfer_tables
from analysis.command import run_tables
from analysis.frames import Frames
from analysis.tables import BuiltTable

TITLE = "Table 7. DBBench-only training"


def build(frames: Frames) -> list[BuiltTable]:
    """``table7`` and ``table7_intervals``; AnalysisError if the runs trained on anything else."""
    return transfer_tables.build(frames, "table7", TITLE, "dbbench", "rised_table7_dbbench_only_correlation")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, TITLE, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
