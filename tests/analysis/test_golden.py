"""Published numbers: they pass through our printing unchanged, and agree with themselves."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.formatting import MISSING, PrintedTable, to_latex, to_markdown
from analysis.frames import Frames
from analysis.names import method_name
from analysis.published import PAPER_DIR
from analysis.tables import orsd_table1, orsd_table2, orsd_table4, table2, table3, table4, table5, table6, table9
from analysis.tables.cost import published_device_seconds


def raw(name: str) -> list[dict[str, str]]:
    """A published table as the texts that stand in its file."""
    lines = (PAPER_DIR / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def rows(table: PrintedTable, groups: slice | int) -> list[list[str]]:
    chosen = table.groups[groups] if isinstance(groups, slice) else [table.groups[groups]]
    return [[cell.text for cell in row] for group in chosen for row in group.rows]


def shown(text: str) -> str:
    return text or MISSING


def test_the_checked_in_numbers_are_those_of_the_source(shared_dir: Path) -> None:
    for source in sorted((shared_dir / "paper").glob("*.csv")):
        assert (PAPER_DIR / source.name).read_text() == source.read_text(), source.name


def test_table_2_prints_every_published_mean_and_std_as_published(frames: Frames) -> None:
    printed = rows(table2.main_table(frames).printed, slice(0, 2))
    for row, published_row in zip(printed, raw("rised_table2_main_results"), strict=True):
        assert row[0] == method_name(published_row["method"])
        for i, environment in enumerate(table2.PAPER_ENVIRONMENTS, start=1):
            mean, std = published_row[f"{environment}_mean"], published_row[f"{environment}_std"]
            assert row[i] == (f"{mean} ± {std}" if std else shown(mean))


def test_table_2s_published_overall_is_the_mean_of_its_environments() -> None:
    for row in raw("rised_table2_main_results"):
        parts = [row[f"{e}_mean"] for e in ("alfworld", "webshop", "dbbench")]
        if all(parts):
            assert sum(map(float, parts)) / 3 == pytest.approx(float(row["overall_mean"]), abs=0.001)


def test_table_9_prints_every_published_second_and_its_rows_sum_and_relate() -> None:
    parts = ("rollout_wait", "tag_wait", "reference", "teacher", "actor", "other")
    published_rows = raw("rised_table9_step_time")
    base = float(published_rows[0]["step"])
    for row in published_rows:
        assert sum(float(row[p] or 0) for p in parts) == pytest.approx(float(row["step"]), abs=0.11)
        assert f"{float(row['step']) / base:.2f}" == row["relative"]


def test_table_9_prints_the_published_texts(frames: Frames) -> None:
    printed = rows(table9.step_time_table(frames).printed, 0)
    for row, published_row in zip(printed, raw("rised_table9_step_time"), strict=True):
        values = [shown(published_row[p]) for p in (*table9.PARTS, "step")]
        assert row == [method_name(published_row["method"]), *values, f"{published_row['relative']}×"]


def test_device_seconds_derived_from_table_9_count_the_judges_gpus_where_tags_are_waited_for() -> None:
    derived = published_device_seconds().set_index("method")["device_s"]
    for row in raw("rised_table9_step_time"):
        assert derived[row["method"]] == pytest.approx(float(row["step"]) * (40 if row["tag_wait"] else 32))


def test_tables_3_and_4_print_the_published_names_and_illustrations(frames: Frames) -> None:
    texts = {
        cell.text
        for t in (table3, table4)
        for b in t.build(frames)
        for g in b.printed.groups
        for r in g.rows
        for cell in r
    }
    for row in raw("rised_tables3_4_rubrics"):
        assert {row["rubric"], row["illustration"]} <= texts


def test_table_5_prints_the_published_sizes_and_selections(frames: Frames) -> None:
    printed = rows(table5.build(frames)[0].printed, 0)
    for row, published_row in zip(printed, raw("rised_table5_data"), strict=True):
        assert [row[1].replace(",", ""), row[2]] == [published_row["train"], published_row["validation"]]
        assert row[4:] == [published_row["train_selection"], published_row["validation_selection"]]


def test_table_6_prints_the_published_settings(frames: Frames) -> None:
    printed = rows(table6.build(frames)[0].printed, 0)
    published_rows = {row["setting"]: row for row in raw("rised_table6_rollout_config")}
    assert set(published_rows) == set(table6.PUBLISHED), "every published setting has a row"
    for row, setting in zip(printed, table6.PUBLISHED, strict=True):
        assert row[1:3] == [shown(published_rows[setting][b]) for b in table6.BACKBONES]


def test_orsd_table_1_prints_every_published_percentage_and_says_which_are_quoted(frames: Frames) -> None:
    printed = rows(orsd_table1.build(frames)[0].printed, slice(0, 2))
    for row, published_row in zip(printed, raw("orsd_table1_main_results"), strict=True):
        assert row[1:] == [published_row[column] for column in orsd_table1.orsd.VALUES]
        assert row[0].endswith(orsd_table1.QUOTED) == (published_row["quoted"] == "yes")


def test_orsd_table_2_prints_every_published_percentage(frames: Frames) -> None:
    printed = rows(orsd_table2.build(frames)[0].printed, slice(0, 2))
    published_rows = raw("orsd_table2_ablation_webshop")
    expected = [[r[f"{key}_score"], r[f"{key}_success"]] for key in orsd_table2.BACKBONES for r in published_rows]
    assert [row[1:] for row in printed] == expected


def test_orsd_tables_4_and_5_print_every_published_setting(frames: Frames) -> None:
    printed = rows(orsd_table4.build(frames)[0].printed, 0)
    published_rows = {row["setting"]: row["value"] for row in raw("orsd_table4_5_config")}
    assert set(orsd_table4.SETTINGS) == set(published_rows), "every published setting has a row"
    assert [row[1] for row in printed] == [published_rows[setting] for setting in orsd_table4.SETTINGS]


def test_orsds_two_tables_agree_where_they_overlap() -> None:
    main = {(r["backbone"], r["method"]): r for r in raw("orsd_table1_main_results")}
    ablation = {r["method"]: r for r in raw("orsd_table2_ablation_webshop")}
    for key, backbone in orsd_table2.BACKBONES.items():
        for theirs, ours in (("grpo", "grpo"), ("orsd", "orsd_m4")):
            assert main[backbone, theirs]["webshop_success"] == ablation[ours][f"{key}_success"]
            assert main[backbone, theirs]["webshop_score"] == ablation[ours][f"{key}_score"]


@pytest.mark.parametrize("build", [table2.build, table9.build, orsd_table1.build], ids=["table2", "table9", "orsd1"])
def test_best_is_bold_and_second_underlined_in_latex_and_markdown(
    build: Callable[[Frames], list[object]], frames: Frames
) -> None:
    printed = build(frames)[0].printed  # type: ignore[attr-defined]
    latex, markdown = to_latex(printed), to_markdown(printed)
    assert latex.count(r"\textbf{") == markdown.count("**") // 2 - 1, "the caption is bold in Markdown"
    assert latex.count(r"\underline{") == markdown.count("<ins>")
