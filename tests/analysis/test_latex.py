"""Every LaTeX table compiles with booktabs alone; checked where pdflatex is installed (``make latex-packages``)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from analysis import formatting
from analysis.formatting import Cell, Group, PrintedTable
from analysis.frames import Frames
from analysis.registry import build_tables
from analysis.runs import find_experiment
from analysis.synthetic import write_experiment

TRAINED_ON_ONE = {"table1", "table7", "table8"}
"""Tables of experiments with one training environment."""
HEAD = r"""\documentclass{article}
\usepackage[a3paper,landscape,margin=1cm]{geometry}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\begin{document}
"""


def compiled(latex: list[str], folder: Path) -> str:
    """pdfLaTeX's log of a document with these tables; fails the test where it stops at an error."""
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex here: make latex-packages installs it")
    (folder / "tables.tex").write_text(HEAD + "\n\\clearpage\n".join(latex) + "\n\\end{document}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "tables.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    return (folder / "tables.log").read_text(errors="replace")


def test_the_tables_of_an_experiment_compile(tmp_path: Path) -> None:
    runs = write_experiment(tmp_path / "runs", ("grpo_64", "rised", "orsd"), (0, 1), 4)
    frames = Frames(find_experiment(runs))
    names = [p.stem for p in Path(formatting.__file__).parent.glob("tables/*.py") if p.stem not in TRAINED_ON_ONE]
    names = [name for name in names if name not in ("__init__", "audit", "selector_overlap")]
    built = [table for tables in build_tables(frames, names).values() for table in tables]
    assert len(built) > 12
    log = compiled([formatting.to_latex(table.printed) for table in built], tmp_path)
    assert "Missing character" not in log


def test_awkward_names_and_texts_from_episodes_compile(
    tmp_path: Path, cases_dir: Path, request: pytest.FixtureRequest
) -> None:
    names = [
        "ρ, λ and Ω",
        "Α is no Latin A",
        "naïve Œuvre, Łódź",
        "中文",
        "✓ 🙂",
        "a−b ≤ c² ‖x‖",
        "“quoted” – it’s…",
        "日 a & b_c",
    ]
    case = json.loads((cases_dir / "51-names-in-latex-and-markdown" / "names.json").read_text())
    names += [entry["name"] for entry in case]
    rows = [[Cell(name), Cell(name)] for name in names]
    long_head = "a head that is longer than a line " * 8
    table = PrintedTable(
        "t_1", "\n".join(names[:3]), names[:2], [Group(long_head, rows)], notes=names, text_columns=(1,)
    )
    latex = formatting.to_latex(table)
    assert r"$\rho$, $\lambda$ and $\Omega$" in latex and "U+4E2DU+6587" in latex and latex.count("multicolumn") == 3
    compiled([latex], tmp_path)
