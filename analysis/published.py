"""The papers' numbers (``data/paper``) as data frames. Published only: nothing of ours is mixed in here."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis import AnalysisError
from analysis.sources import note_published

PAPER_DIR = Path(__file__).resolve().parent.parent / "data" / "paper"
REFERENCE_BACKBONE = "Qwen2.5-3B-Instruct"


def load(name: str) -> pd.DataFrame:
    """One published table by its file stem; comment lines are dropped, empty cells are NaN."""
    path = PAPER_DIR / f"{name}.csv"
    if not path.is_file():
        raise AnalysisError(f"published numbers not found: {path}; they are part of the repository (data/paper)")
    note_published(name)
    return pd.read_csv(path, comment="#")


def main_results() -> pd.DataFrame:
    """RISED Table 2: backbone, method and mean and std of each environment and overall."""
    return load("rised_table2_main_results")


def step_time() -> pd.DataFrame:
    """RISED Table 9: mean seconds per step and part; NaN where a method has no such part."""
    return load("rised_table9_step_time")


def named_rubrics() -> pd.DataFrame:
    """RISED Tables 3 and 4: the rubric names that the paper prints."""
    return load("rised_tables3_4_rubrics")


def finding(figure: str) -> str:
    """What the paper says in words of one of its figures, for example ``rised_figure2``."""
    findings = load("step_findings").set_index("figure")["finding"]
    return str(findings[figure])
