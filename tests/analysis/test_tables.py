"""Tables 2 and 9 and the learning table, from synthetic runs and beside the published rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import published
from analysis.formatting import Mark
from analysis.frames import Frames
from analysis.runs import find_experiment
from analysis.tables import learning, table2, table9


def rows_of(table: table2.PrintedTable, group: int) -> dict[str, list[str]]:
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.groups[group].rows}


def test_table_2_holds_the_published_rows_unchanged_and_marks_as_the_paper_does(frames: Frames) -> None:
    built = table2.main_table(frames)
    paper = rows_of(built.printed, 0)
    assert paper["RISED"] == ["0.800 ± 0.023", "0.256 ± 0.003", "0.569 ± 0.002", "0.542 ± 0.008", "–", "–"]
    assert built.printed.groups[0].head.startswith("published")
    marks = {row[0].text: [cell.mark for cell in row[1:5]] for row in built.printed.groups[0].rows}
    assert marks["RISED"] == [Mark.SECOND, Mark.BEST, Mark.BEST, Mark.BEST]
    assert marks["Round-robin Variance"][0] is Mark.BEST
    quoted = built.printed.groups[1]
    assert "Qwen3-4B" in quoted.head and len(quoted.rows) == 2
    assert all(cell.mark is Mark.NONE for row in quoted.rows for cell in row), "its other baselines are unknown"


def test_table_2_prints_mean_and_sample_std_of_finished_seeds_only(frames: Frames) -> None:
    own = rows_of(table2.main_table(frames).printed, 2)
    values = [frames.rate(run, 4, "overall") for run in frames.final_runs("rised")]
    assert own["RISED"][3] == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    assert own["RISED"][4] == "2 of 2"
    single = frames.rate(frames.experiment.of("round_robin_variance")[0], 4, "overall")
    assert own["Round-robin Variance"][4:] == ["1 of 2", "36 / 36"]
    assert own["Round-robin Variance"][3] == f"{single:.3f}"


def test_a_method_that_was_not_run_is_shown_as_such_and_never_as_a_number(frames: Frames) -> None:
    own = rows_of(table2.main_table(frames).printed, 2)
    assert own["GRPO-128"] == ["–", "–", "–", "–", "not run", "–"]
    notes = table2.main_table(frames).printed.notes
    assert any("Round-robin Variance seed 1: unfinished at update 2 of 4" in note for note in notes)


def test_the_interval_table_refuses_a_seed_level_interval_of_two_seeds(frames: Frames) -> None:
    built = table2.interval_table(frames)
    row = rows_of(built.printed, 0)["RISED"]
    assert row[2] == "n/a (n = 2 < 3 seeds)"
    values = built.frame.set_index("method").loc["rised"]
    assert values["task_low"] < values["overall_mean"] < values["task_high"]
    assert values["difference"] == pytest.approx(
        values["overall_mean"] - built.frame.set_index("method").loc["grpo_64", "overall_mean"], abs=1e-9
    )


def test_without_validation_shards_rates_stay_and_intervals_say_why_they_are_missing(frames: Frames) -> None:
    bare = Frames(frames.experiment)
    bare.__dict__["validation"] = frames.validation.iloc[:0]
    without, whole = (rows_of(table2.main_table(f).printed, 2)["RISED"] for f in (bare, frames))
    assert [text.split(" (strict")[0] for text in whole[:-1]] == without[:-1], "the rates are those of the metrics"
    assert (without[-1], whole[-1]) == ("–", "72 / 72")
    assert rows_of(table2.interval_table(bare).printed, 0)["RISED"][1] == "n/a (no validation shards)"


def test_with_no_finished_run_every_final_value_is_missing(grid: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(grid, tmp_path / "grid")
    for done in copy.rglob("DONE"):
        done.unlink()
    frames = Frames(find_experiment(copy))
    assert frames.final_step is None
    own = rows_of(table2.main_table(frames).printed, 2)
    assert own["RISED"] == ["–", "–", "–", "–", "0 of 2", "–"]
    assert learning.learning_frame(frames)["final"].isna().all()
    assert len(table2.interval_table(frames).frame) == 3


def test_table_9_averages_steps_leaves_absent_parts_empty_and_its_parts_sum_to_the_step(frames: Frames) -> None:
    own = table9.own_step_times(frames).set_index("method")
    parts = own[list(table9.PARTS)].sum(axis=1)
    assert np.allclose(parts, own["step"], rtol=1e-9)
    assert np.isnan(own.loc["grpo_64", "teacher"]) and own.loc["rised", "teacher"] > 0
    assert own.loc["grpo_64", "relative"] == 1.0
    assert own.loc["rised", "relative"] == pytest.approx(own.loc["rised", "step"] / own.loc["grpo_64", "step"])
    assert table9.sum_warnings(own.reset_index()) == []
    assert list(own["steps"]) == [4, 4, 4]


def test_parts_that_do_not_sum_to_the_step_are_reported(frames: Frames) -> None:
    own = table9.own_step_times(frames)
    own.loc[0, "actor"] += 5
    assert "GRPO-64: the parts sum to" in table9.sum_warnings(own)[0]


def test_the_published_table_9_passes_its_own_sum_check() -> None:
    assert table9.sum_warnings(published.step_time()) == []


def test_table_9_prints_the_published_rows_unchanged(frames: Frames) -> None:
    paper = rows_of(table9.step_time_table(frames).printed, 0)
    assert paper["RISED"] == ["8.6", "63.0", "27.2", "30.6", "92.1", "31.4", "252.9", "1.63×"]
    assert paper["GRPO-64"] == ["0.5", "–", "25.7", "–", "89.7", "39.6", "155.5", "1.00×"]


def test_cost_counts_tokens_of_training_steps_and_whole_runs_only_when_finished(frames: Frames) -> None:
    frame = table9.cost_table(frames).frame.set_index("method")
    metrics = frames.metrics.query("name == 'rollout/tokens' and method == 'rised'")
    assert frame.loc["rised", "tokens"] == pytest.approx(metrics["value"].sum() / 2)
    finished = frames.metrics.query("name == 'rollout/tokens' and method == 'round_robin_variance' and seed == 0")
    assert frame.loc["rised", "peak_memory_mib"] == 104.0
    assert frame.loc["round_robin_variance", "tokens"] == pytest.approx(finished["value"].sum())


def test_learning_csv_has_exactly_its_columns_and_one_row_per_run_and_environment(
    frames: Frames, tmp_path: Path
) -> None:
    assert learning.main(["--runs", str(frames.experiment.path), "--out", str(tmp_path)]) == 0
    frame = pd.read_csv(tmp_path / "learning.csv")
    assert list(frame.columns) == [
        "method",
        "seed",
        "environment",
        "warm_start",
        "final",
        "validation_tasks",
        "updates",
    ]
    assert len(frame) == 6 * 4
    whole = frame[frame["environment"] == "overall"].set_index(["method", "seed"])
    assert whole.loc[("rised", 0), "validation_tasks"] == 36 and whole.loc[("rised", 0), "updates"] == 4
    unfinished = whole.loc[("round_robin_variance", 1)]
    assert np.isnan(unfinished["final"]) and unfinished["updates"] == 2 and unfinished["warm_start"] > 0


@pytest.mark.parametrize("module", [table2, table9, learning])
def test_each_table_module_writes_csv_markdown_and_latex(module: object, grid: Path, tmp_path: Path) -> None:
    assert module.main(["--runs", str(grid), "--out", str(tmp_path)]) == 0  # type: ignore[attr-defined]
    stems = {path.stem for path in tmp_path.iterdir() if path.suffix != ".json"}
    for stem in stems:
        assert {path.suffix for path in tmp_path.glob(f"{stem}.*")} - {".json"} == {".csv", ".md", ".tex"}
        latex = (tmp_path / f"{stem}.tex").read_text()
        assert r"\toprule" in latex and r"\bottomrule" in latex
