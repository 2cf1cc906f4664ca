"""The tables and figures of the report, in its order. A further one is one new module; experiments name those they
want (``analysis`` in the experiment file), and those below are the ones of an experiment that names none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from analysis.figures import BuiltFigure
from analysis.frames import Frames
from analysis.tables import BuiltTable

TABLES = ("table2", "learning", "table9")
FIGURES = ("figure2", "figure4")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: its anchor, its word in the navigation, its heading, and the modules that it shows."""

    anchor: str
    word: str
    heading: str
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


SECTIONS = (
    Section("results", "Results", "Final pass rates", tables=("table2", "claims")),
    Section("transfer", "Transfer", "Similarity and improvement", ("table1", "table7", "table8"), ("transfer",)),
    Section("learning-section", "Learning", "Learning, every seed", tables=("learning",)),
    Section("dynamics", "Dynamics", "Validation dynamics", figures=("figure2", "figure5")),
    Section("ablations", "Ablations", "Ablations", tables=("ablation",), figures=("figure3", "figure6", "figure8")),
    Section(
        "rubrics", "Rubrics", "Rubrics and performance", tables=("table3", "table4"), figures=("figure4", "figure7")
    ),
    Section("selectors", "Selectors", "What selectors choose", ("selector_overlap",), ("selector_overlap",)),
    Section("judges", "Judges", "Judges against detectors", tables=("audit",), figures=("audit",)),
    Section("time", "Step time", "Step time and cost", tables=("table9", "cost"), figures=("cost_curves",)),
    Section("setup", "Setup", "Data and configuration", tables=("table5", "table6")),
    Section(
        "orsd",
        "ORSD",
        "ORSD",
        tables=("orsd_table1", "orsd_table2", "orsd_table4", "orsd_bundles"),
        figures=("orsd_figure2", "orsd_figure3"),
    ),
    Section("mapf", "MAPF", "MAPF-FrozenLake", tables=("mapf",)),
)
"""The report's order."""
NO_PRODUCTS = ("__init__", "command", "curves", "dynamics", "style")
"""Modules beside the tables and figures that are none."""


def sections(tables: Sequence[str], figures: Sequence[str]) -> list[Section]:
    """The report's sections that show any of the modules; what has no section of its own comes last."""
    found = [
        replace(
            section,
            tables=tuple(name for name in section.tables if name in tables),
            figures=tuple(name for name in section.figures if name in figures),
        )
        for section in SECTIONS
    ]
    placed = {name for section in found for name in (*section.tables, *section.figures)}
    rest = [tuple(name for name in names if name not in placed) for names in (tables, figures)]
    found.append(Section("further", "Further", "Further tables and figures", *rest))
    return [section for section in found if section.tables or section.figures]


def modules(kind: str) -> list[str]:
    """Names of all modules of ``tables`` or ``figures``."""
    folder = Path(__file__).parent / kind
    return sorted(path.stem for path in folder.glob("*.py") if path.stem not in NO_PRODUCTS)


def build_tables(frames: Frames, names: Sequence[str] = TABLES) -> dict[str, list[BuiltTable]]:
    """The tables of each module by module name."""
    return {name: import_module(f"analysis.tables.{name}").build(frames) for name in names}


def build_figures(frames: Frames, names: Sequence[str] = FIGURES) -> dict[str, BuiltFigure]:
    """Each figure by module name."""
    return {name: import_module(f"analysis.figures.{name}").build(frames) for name in names}
