"""One module per table: ``build(frames) -> list[BuiltTable]``, and ``main`` to run it alone.

``analysis.registry`` lists the modules for the report.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.formatting import PrintedTable


@dataclass(frozen=True)
class BuiltTable:
    """A table ready to print, and the tidy frame behind it (what the CSV holds)."""

    printed: PrintedTable
    frame: pd.DataFrame
