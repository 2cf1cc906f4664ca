"""What a table or figure was made from is noted where it is read, and the page in front of the reports lists it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from analysis import AnalysisError, index
from analysis.figures import figure4
from analysis.registry import modules
from analysis.report.__main__ import main as report
from analysis.sources import read_sources
from analysis.synthetic import write_experiment
from analysis.tables import table2, table3, table6
from rised.records.compaction import compact
from rised.records.shards import RunReader


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One experiment's runs, compacted, and some of its tables and figures."""
    root = tmp_path_factory.mktemp("sources")
    made = write_experiment(root / "made", ("grpo_64", "rised"), (0,), 4)
    for method in ("grpo_64", "rised"):
        compact(made / method / "seed-0", root / "grid" / method / "seed-0", last_texts=True)
    runs = ["--runs", str(root / "grid")]
    folder = root / "results" / "grid" / "analysis"
    for table in (table2, table3, table6):
        assert table.main([*runs, "--out", str(folder / "tables")]) == 0
    assert figure4.main([*runs, "--out", str(folder / "figures")]) == 0
    names = ["--tables", "table2", "table3", "--figures", "figure4"]
    made_from = ["--made-from", str(folder / "tables"), str(folder / "figures")]
    assert report([*runs, "--out", str(folder / "report.html"), *names, *made_from]) == 0
    return root / "results"


def test_the_list_names_the_records_that_were_read_and_the_published_numbers(results: Path) -> None:
    found = {s.module: s for s in read_sources([results / "grid/analysis/tables", results / "grid/analysis/figures"])}
    assert set(found) == {"table2", "table3", "table6", "figure4"}
    assert set(found["table2"].records) == {"validation", "metrics"}
    assert found["table2"].published == ["rised_table2_main_results"]
    assert {"tag_counts", "tags", "rollout_texts"} <= set(found["table3"].records)
    assert "tags" not in found["figure4"].records and "tag_counts" in found["figure4"].records
    run = RunReader(results.parent / "grid" / "rised" / "seed-0")
    other = RunReader(results.parent / "grid" / "grpo_64" / "seed-0")
    metrics = run.metrics().num_rows + other.metrics().num_rows
    assert found["table2"].records["metrics"] == metrics
    assert found["table6"].published == ["rised_table6_rollout_config"] and "metrics" not in found["table6"].records
    assert (found["figure4"].experiment, found["figure4"].runs) == ("synthetic_grid", 2)
    assert found["figure4"].files == ["figure4.png", "figure4.pdf", "figure4.csv"]


def test_the_report_shows_the_list(results: Path) -> None:
    text = (results / "grid" / "analysis" / "report.html").read_text(encoding="utf-8")
    (card,) = re.findall(r'<div class="table-card" id="sources">(.*?)</table>', text, re.DOTALL)
    assert "rised_table2_main_results" in card and re.search(r"tag_counts \([\d,]+\)", card)


def test_the_index_has_a_row_for_all_that_the_papers_print_and_links_that_lead_somewhere(results: Path) -> None:
    page, table = index.write(results)
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    places = {(row["paper"], row["place"]): row for row in rows}
    assert {("RISED", f"Table {i}") for i in range(1, 10)} | {("RISED", f"Figure {i}") for i in range(2, 9)} <= set(
        places
    )
    assert {("ORSD", f"{kind} {i}") for kind, i in (("Table", 1), ("Table", 2), ("Figure", 2), ("Figure", 3))} <= set(
        places
    )
    assert (
        places["RISED", "Table 2"]["experiment"] == "synthetic_grid" and places["RISED", "Table 7"]["experiment"] == ""
    )
    links = re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(links) > 10 and all((results / link).is_file() for link in links)
    assert "made from none of these experiments" in page.read_text(encoding="utf-8")


def test_every_module_named_for_a_paper_is_there() -> None:
    named = {module for places in index.PAPERS.values() for module in places}
    assert named <= {*modules("tables"), *modules("figures")}


def test_what_is_no_list_or_no_analysis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no analysis below"):
        index.rows(tmp_path)
    (tmp_path / "table2.sources.json").write_text(json.dumps({"unknown": 1}))
    with pytest.raises(AnalysisError, match=r"table2\.sources\.json is no list of sources"):
        read_sources([tmp_path])
