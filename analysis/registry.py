"""The tables and figures of the report, in its order. A further one is one new module and its name in a tuple here."""

from __future__ import annotations

from importlib import import_module

from analysis.figures import BuiltFigure
from analysis.frames import Frames
from analysis.tables import BuiltTable

TABLES = ("table2", "learning", "table9")
FIGURES = ("figure2", "figure4")


def build_tables(frames: Frames) -> dict[str, list[BuiltTable]]:
    """Every registered table module's tables by module name."""
    return {name: import_module(f"analysis.tables.{name}").build(frames) for name in TABLES}


def build_figures(frames: Frames) -> dict[str, BuiltFigure]:
    """Every registered figure by module name."""
    return {name: import_module(f"analysis.figures.{name}").build(frames) for name in FIGURES}
