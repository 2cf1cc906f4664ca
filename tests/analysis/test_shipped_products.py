"""The shipped tables and figures are what this code makes of the shipped records."""

from __future__ import annotations

from importlib import import_module
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from ruamel.yaml import YAML

from analysis.formatting import to_csv, to_latex, to_markdown
from analysis.frames import Frames
from analysis.registry import modules
from analysis.runs import find_experiment

SHIPPED = ("dbbench_only", "laptop_ablation", "laptop_grid", "laptop_orsd", "webshop_only")
SLOW = {"table1", "table3", "table4", "table7", "table8"}
"""Tables that read every tag: their bootstrap or their examples take seconds."""


def same_numbers(shipped: str, made: str) -> bool:
    """Equal but for the last bits, which depend on the processor."""
    left, right = (pd.read_csv(StringIO(text)) for text in (shipped, made))
    try:
        pd.testing.assert_frame_equal(left, right, rtol=1e-9, atol=1e-12, check_dtype=False)
    except AssertionError:
        return False
    return True


def stale(folder: Path, names: list[str]) -> list[str]:
    frames = Frames(find_experiment(folder))
    found = []
    for name in names:
        for built in import_module(f"analysis.tables.{name}").build(frames):
            path = folder / "tables" / f"{built.printed.name}.csv"
            for suffix, text in ((".md", to_markdown(built.printed)), (".tex", to_latex(built.printed))):
                if path.with_suffix(suffix).read_text(encoding="utf-8") != text:
                    found.append(str(path.with_suffix(suffix).relative_to(folder)))
            if not same_numbers(path.read_text(encoding="utf-8"), to_csv(built.frame)):
                found.append(str(path.relative_to(folder)))
    for name in sorted(path.stem for path in (folder / "figures").glob("*.csv")):
        made = to_csv(import_module(f"analysis.figures.{name}").build(frames).frame)
        if not same_numbers((folder / "figures" / f"{name}.csv").read_text(encoding="utf-8"), made):
            found.append(f"figures/{name}.csv")
    return found


def shipped_tables(folder: Path) -> list[str]:
    return [name for name in modules("tables") if (folder / "tables" / f"{name}.csv").exists()]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_and_figures_are_what_the_code_makes(repository: Path, name: str) -> None:
    folder = repository / "data" / "sample_results" / name
    assert stale(folder, [module for module in shipped_tables(folder) if module not in SLOW]) == []


@pytest.mark.parametrize("name", SHIPPED)
def test_every_product_that_an_experiment_names_is_shipped(repository: Path, name: str) -> None:
    named = YAML(typ="safe").load(repository / "configs" / "experiments" / f"{name}.yaml")["analysis"]
    folder = repository / "data" / "sample_results" / name
    absent = [f"{k}/{n}" for k in named for n in named[k] if not (folder / k / f"{n}.csv").exists()]
    assert absent == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_that_read_every_tag_are_what_the_code_makes(repository: Path, name: str) -> None:
    folder = repository / "data" / "sample_results" / name
    assert stale(folder, [module for module in shipped_tables(folder) if module in SLOW]) == []
