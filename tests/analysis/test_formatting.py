"""Printed tables: escaping of awkward names, ranking marks, and published numbers that pass through unchanged."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from analysis import formatting, published
from analysis.formatting import Cell, Group, Mark, PrintedTable
from analysis.statistics import Interval, MeanStd


def table_of(names: list[str], index_name: str = "method_name") -> PrintedTable:
    rows = [[Cell(name), Cell("50%", 0.5), Cell("0.542 ± 0.008", 0.542)] for name in names]
    return PrintedTable(
        "t_1", "caption_with 5% & more", [index_name, "a_b", "c"], [Group("head_1 <i>", rows)], ["note_1 #"]
    )


@pytest.fixture(scope="module")
def awkward_names(cases_dir: Path) -> list[dict[str, str]]:
    return json.loads((cases_dir / "51-names-in-latex-and-markdown" / "names.json").read_text())


def test_the_seventeen_awkward_names_are_escaped_as_the_case_lists_them(awkward_names: list[dict[str, str]]) -> None:
    assert len(awkward_names) == 17
    for entry in awkward_names:
        # The case leaves Greek as it is, at which pdfLaTeX stops: it must compile, so that it is mathematics here.
        assert formatting.latex_escape(entry["name"]) == entry["latex"].replace("ε", r"$\epsilon$")
        assert formatting.markdown_escape(entry["name"]) == entry["markdown"]


def test_every_latex_row_of_awkward_names_has_the_same_number_of_column_breaks(
    awkward_names: list[dict[str, str]],
) -> None:
    latex = formatting.to_latex(table_of([entry["name"] for entry in awkward_names]))
    rows = [line for line in latex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(rows) == 18
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {2}
    for line in latex.splitlines():
        assert not re.search(r"(?<!\\)[%#]", line), line
        text = re.sub(r"\\label\{[^}]*\}|\$\\[a-z]+\$|\$-\$", "", line)
        assert not re.search(r"(?<!\\)[_$~^]", text), line


def test_the_index_name_and_percent_cells_are_escaped_in_latex() -> None:
    latex = formatting.to_latex(table_of(["x"]))
    assert r"method\_name & a\_b & c" in latex
    assert r"x & 50\% & 0.542 $\pm$ 0.008 \\" in latex
    assert r"\caption{caption\_with 5\% \& more}" in latex
    assert r"note\_1 \#" in latex


def test_every_markdown_row_of_awkward_names_stays_one_row_of_three_cells(awkward_names: list[dict[str, str]]) -> None:
    text = formatting.to_markdown(table_of([entry["name"] for entry in awkward_names]))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 1 + 1 + 1 + 17
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    assert "<i>" not in text and "<b>" not in text


def test_csv_gives_every_awkward_name_back_exactly(awkward_names: list[dict[str, str]]) -> None:
    names = [entry["name"] for entry in awkward_names]
    text = formatting.to_csv(pd.DataFrame({"method_name": names, "value": [0.1 + 0.2] * len(names)}))
    read = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["method_name"] for row in read] == names
    assert {float(row["value"]) for row in read} == {0.1 + 0.2}


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells under 2 columns"):
        PrintedTable("t", "c", ["a", "b"], [Group("", [[Cell("x")]])])


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formatting.number(0.1825), "0.182"),
        (formatting.number(-0.0001), "0.000"),
        (formatting.number(-0.5, 2), "−0.50"),
        (formatting.number(float("nan")), "–"),
        (formatting.percent(0.5), "50%"),
        (formatting.percent(None), "–"),
        (formatting.points(0.0312), "+3.1"),
        (formatting.points(-0.0312), "−3.1"),
        (formatting.relative(1.6264), "1.63×"),
        (formatting.seconds(155.52), "155.5"),
        (formatting.seconds(0.034), "0.03"),
        (formatting.mean_std_text(MeanStd(0.5421, 0.0079, 3)), "0.542 ± 0.008"),
        (formatting.mean_std_text(MeanStd(0.5421, None, 1)), "0.542"),
        (formatting.mean_std_text(None), "–"),
        (formatting.interval_text(Interval(None, None, 0.95, "n = 2 < 3 seeds")), "n/a (n = 2 < 3 seeds)"),
        (formatting.interval_text(Interval(-0.01, 0.0344), as_points=True), "[−1.0, +3.4]"),
    ],
)
def test_numbers_print_as_the_papers_print_them(shown: str, expected: str) -> None:
    assert shown == expected


def test_best_is_bold_second_is_underlined_and_equal_prints_share_a_mark() -> None:
    rows = [[Cell(n), Cell(str(v), v)] for n, v in [("a", 0.5001), ("b", 0.5004), ("c", 0.4), ("d", 0.3)]]
    rows.append([Cell("e"), Cell("–")])
    ranked = formatting.rank([Group("", rows)], [1])[0].rows
    assert [row[1].mark for row in ranked] == [Mark.BEST, Mark.BEST, Mark.SECOND, Mark.NONE, Mark.NONE]
    latex = formatting.to_latex(PrintedTable("t", "c", ["m", "v"], [Group("", ranked)]))
    assert r"a & \textbf{0.5001}" in latex and r"c & \underline{0.4}" in latex
    markdown = formatting.to_markdown(PrintedTable("t", "c", ["m", "v"], [Group("", ranked)]))
    assert "| a | **0.5001** |" in markdown and "| c | <ins>0.4</ins> |" in markdown


def test_a_single_value_is_not_called_the_best() -> None:
    ranked = formatting.rank([Group("", [[Cell("a"), Cell("1", 1.0)], [Cell("b"), Cell("–")]])], [1])[0].rows
    assert ranked[0][1].mark is Mark.NONE


def test_published_table_2_prints_character_by_character_as_the_paper(shared_dir: Path) -> None:
    source = next((shared_dir / "seeds").glob("000_*.txt")).read_text()
    frame = published.main_results()
    frame = frame[frame["backbone"] == published.REFERENCE_BACKBONE]
    assert len(frame) == 6
    for row in frame.to_dict("records"):
        for environment in ("alfworld", "webshop", "dbbench", "overall"):
            shown = formatting.mean_std_text(MeanStd(row[f"{environment}_mean"], row[f"{environment}_std"], 3))
            assert re.search(rf"^{re.escape(shown)}$", source, re.MULTILINE), (row["method"], environment, shown)


def test_published_table_9_prints_character_by_character_as_the_paper(shared_dir: Path) -> None:
    source = next((shared_dir / "seeds").glob("000_*.txt")).read_text().splitlines()
    rised = published.step_time().set_index("method").loc["rised"]
    parts = ["rollout_wait", "tag_wait", "reference", "teacher", "actor", "other", "step"]
    shown = [formatting.seconds_published(float(rised[part])) for part in parts]
    shown.append(formatting.relative(float(rised["relative"])))
    start = max(i for i, line in enumerate(source) if line == "RISED" and source[i + 1] == shown[0])
    assert source[start + 1 : start + 9] == shown


def test_published_overall_is_the_mean_of_its_environments() -> None:
    frame = published.main_results().dropna(subset=["alfworld_mean"])
    means = frame[["alfworld_mean", "webshop_mean", "dbbench_mean"]].mean(axis=1)
    assert ((means - frame["overall_mean"]).abs() <= 0.001).all()


def test_published_step_parts_sum_to_the_step_and_relatives_check() -> None:
    frame = published.step_time().set_index("method")
    parts = frame[["rollout_wait", "tag_wait", "reference", "teacher", "actor", "other"]].sum(axis=1)
    assert ((parts - frame["step"]).abs() <= 6 * 0.05 + 0.05).all()
    assert ((frame["step"] / frame.loc["grpo_64", "step"] - frame["relative"]).abs() <= 0.005 + 1e-9).all()
