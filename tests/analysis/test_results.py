"""Final results: one pass rate for loop, tables and check; coverage, planned seeds, and what is ranked."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from small_runs import episodes, write_run

from analysis import AnalysisError
from analysis import statistics as st
from analysis.formatting import Mark, PrintedTable
from analysis.frames import Frames
from analysis.report.health import disagreements
from analysis.results import final_results
from analysis.runs import find_experiment
from analysis.tables import ablation, orsd_table2, table2
from analysis.tables.claims import comparison_frame
from rised.statistics.pass_rates import mean_over_tasks, strict, task_means
from stages.loop import validation_metrics

A = {"t0": "1010", "t1": "1111", "t2": "0000"}
B = {"t0": "10xx", "t1": "1111", "t2": "xxx0"}
"""Four rollouts a task: pooled 6/12 and 5/7, over tasks 0.5 both."""


def values(tasks: dict[str, str]) -> list[tuple[str, float | None]]:
    return [(task, {"1": 1.0, "0": 0.0}.get(mark)) for task, marks in tasks.items() for mark in marks]


def frames_of(root: Path, arms: dict[tuple[str, int], dict[str, dict[str, str]]]) -> Frames:
    for (method, seed), outcomes in arms.items():
        write_run(root / "made_up", method, seed, outcomes)
    return Frames(find_experiment(root))


def own_rows(table: PrintedTable) -> dict[str, dict[str, tuple[str, Mark]]]:
    return {
        row[0].text: {name: (cell.text, cell.mark) for name, cell in zip(table.columns[1:], row[1:], strict=True)}
        for row in table.groups[-1].rows
    }


def metric(rollouts: list, name: str) -> float | None:
    return next(m.value for m in validation_metrics(rollouts, 1) if m.name == name)


def test_a_task_weighs_the_same_however_many_of_its_rollouts_are_valid() -> None:
    assert mean_over_tasks(values(A)) == mean_over_tasks(values(B)) == 0.5
    assert task_means(values(B)) == {"t0": 0.5, "t1": 1.0, "t2": 0.0}
    assert mean_over_tasks(values({"t0": "xx"})) is None


def test_equal_numbers_of_valid_rollouts_give_the_mean_over_rollouts_to_the_last_bit() -> None:
    for successes in range(1, 331):
        marks = ("1" * successes).ljust(330, "0")
        tasks = {f"t{i}": marks[3 * i : 3 * i + 3] for i in range(110)}
        assert mean_over_tasks(values(tasks)) == successes / 330


def test_the_listed_task_with_two_lost_rollouts_passes_one_of_two_and_strictly_one_of_four(cases_dir: Path) -> None:
    case = json.loads((cases_dir / "52-overall-missing-environment-mixed-panels" / "errors.json").read_text())
    found = [
        (case["task"], float(rollout["success"]) if rollout["reward_valid"] else None) for rollout in case["rollouts"]
    ]
    assert mean_over_tasks(found) == 0.5 and mean_over_tasks(strict(found)) == 0.25


def test_loop_table_difference_and_check_agree_on_panels_with_lost_episodes(tmp_path: Path) -> None:
    frames = frames_of(tmp_path, {("grpo_64", 0): {"webshop": A}, ("rised", 0): {"webshop": B}})
    for outcomes in (A, B):
        assert metric(episodes("r", 1, {"webshop": outcomes}), "validation/success/webshop") == 0.5
        assert metric(episodes("r", 1, {"webshop": outcomes}), "validation/reward/webshop") == 0.5
    rows = own_rows(table2.main_table(frames).printed)
    assert rows["GRPO-64"]["Overall"] == ("0.500", Mark.NONE), "alone in the ranking"
    assert rows["RISED"]["Overall"] == ("0.500 (strict 0.417)", Mark.NONE)
    assert rows["RISED"]["Valid episodes"] == ("7 / 12", Mark.NONE)
    interval = table2.interval_table(frames).frame.set_index("method")
    assert interval.loc["rised", "overall_mean"] == 0.5 and interval.loc["rised", "difference"] == 0.0
    assert comparison_frame(frames)["difference"].tolist() == [0.0]
    assert disagreements(frames) == ["All 4 stored pass rates equal those counted in the validation episodes."]


def test_a_rate_that_was_stored_by_pooling_is_named_and_the_tables_print_the_counted_one(tmp_path: Path) -> None:
    frames = frames_of(tmp_path, {("rised", 0): {"webshop": B}})
    pooled = frames.metrics["name"] == "validation/success/webshop"
    frames.__dict__["metrics"] = frames.metrics.assign(value=frames.metrics["value"].mask(pooled, 5 / 7))
    assert frames.rate(frames.experiment.runs[0], 1, "webshop") == 0.5
    assert "rised seed 0 update 1 webshop: stored 0.7143, counted 0.5000" in disagreements(frames)[1]


def test_lost_episodes_are_printed_and_cannot_make_a_method_the_best(tmp_path: Path) -> None:
    lost = {("grpo_64", 0): {"webshop": {"t0": "111000"}}, ("rised", 0): {"webshop": {"t0": "111xxx"}}}
    frames = frames_of(tmp_path, lost)
    row = own_rows(table2.main_table(frames).printed)["RISED"]
    assert row["WebShop"] == row["Overall"] == ("1.000 (strict 0.500)", Mark.NONE)
    assert row["Valid episodes"][0] == "3 / 6"
    intervals = own_rows(table2.interval_table(frames).printed)["RISED"]
    assert intervals["Overall"] == ("1.000 (strict 0.500)", Mark.NONE)
    sentence = "RISED seed 0, WebShop at update 1: 3 of 6 episodes are valid; with the lost ones as failures 0.500"
    for built in (*table2.build(frames), *ablation.build(frames), *orsd_table2.build(frames)):
        assert any(note.startswith(sentence) for note in built.printed.notes), built.printed.name


def test_an_environment_without_a_valid_episode_blanks_its_cell_and_the_overall_one_only(tmp_path: Path) -> None:
    whole, broken = {"alfworld": A, "webshop": A}, {"alfworld": A, "webshop": dict.fromkeys(A, "xxxx")}
    arms = {("grpo_64", 0): whole, ("grpo_64", 1): whole, ("rised", 0): broken, ("rised", 1): whole}
    frames = frames_of(tmp_path, arms)
    assert frames.final_step == 1 and len(frames.final_runs("rised")) == 2
    row = final_results(frames).set_index(["method", "environment"]).loc["rised"]
    assert row.loc["alfworld", "mean"] == 0.5 and row.loc["alfworld", "n"] == 2
    assert row.loc["webshop", "n"] == row.loc["overall", "n"] == 1 and row.loc["overall", "n_planned"] == 2
    printed = table2.interval_table(frames).printed
    assert own_rows(printed)["RISED"]["95% over tasks"][0] == "n/a (no valid episode of WebShop)"
    note = "RISED seed 0, WebShop at update 1: none of 12 episodes is valid; overall is missing too"
    assert note in printed.notes and not any("None" in text for text in printed.notes)
    (row_of,) = comparison_frame(frames).to_dict("records")
    assert pd.isna(row_of["p_seeds"]) and pd.isna(row_of["difference"]), "nothing is tested on what is not there"


def test_overall_is_missing_where_an_environment_is_and_never_pooled(cases_dir: Path, tmp_path: Path) -> None:
    folder = cases_dir / "52-overall-missing-environment-mixed-panels"
    counts = json.loads((folder / "overall.json").read_text())
    panels = {e: {f"t{i}": "1" if i < passed else "0" for i in range(n)} for e, (passed, n) in counts.items()}
    without = {name: tasks for name, tasks in panels.items() if name != "appworld"}
    frames = frames_of(tmp_path, {("grpo_64", 0): panels, ("rised", 0): panels})
    assert frames.rate(frames.experiment.runs[0], 1, "overall") == pytest.approx(0.4273458877, abs=1e-10)
    assert metric(episodes("r", 1, panels), "validation/success/overall") == pytest.approx(0.4273458877, abs=1e-10)
    rates = frames.counted_rates
    partial = Frames(frames.experiment)
    lost = (rates["method"] == "rised") & (rates["environment"] == "appworld")
    partial.__dict__["counted_rates"] = rates[~lost]
    partial.__dict__["stored_rates"] = frames.stored_rates.iloc[:0]
    row = own_rows(table2.main_table(partial).printed)["RISED"]
    assert (row["AppWorld"][0], row["Overall"][0], row["ALFWorld"][0]) == ("–", "–", "0.734")
    assert "RISED seed 0, AppWorld at update 1: no pass rate, so that overall is missing too" in partial.left_out()
    assert metric(episodes("r", 1, without), "validation/success/overall") == pytest.approx(0.5113149847, abs=1e-10)


def test_methods_on_different_panels_are_refused(cases_dir: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(cases_dir / "52-overall-missing-environment-mixed-panels" / "panels.csv", dtype=str)
    names = {"A": "grpo_64", "B": "rised"}
    for method, block in rows.groupby("method"):
        tasks = {"webshop": dict(zip(block["task"], block["success"], strict=True))}
        write_run(tmp_path / "made_up", names[str(method)], 0, tasks)
    with pytest.raises(AnalysisError, match=r"(?s)panels differ.*grpo_64/seed-0.*rised/seed-0"):
        Frames(find_experiment(tmp_path))


@pytest.fixture
def listed(cases_dir: Path, tmp_path: Path) -> Frames:
    """The listed runs; a run without numbers started and failed."""
    names = {"grpo": "grpo_64", "sdpo": "grpo_128", "dapo": "global_variance", "all_same": "round_robin_variance"}
    for row in pd.read_csv(cases_dir / "49-one-seed-and-missing-seeds" / "runs.csv").to_dict("records"):
        failed = pd.isna(row["passed"])
        passed, valid = (0, 0) if failed else (int(row["passed"]), int(row["valid"]))
        marks = ("1" * passed).ljust(valid, "0").ljust(100, "x")
        tasks = {f"t{i:03d}": mark for i, mark in enumerate(marks)}
        method = names.get(row["method"], row["method"])
        write_run(tmp_path / "made_up", method, row["seed"], {"webshop": tasks}, finished=not failed)
    return Frames(find_experiment(tmp_path))


def test_seeds_that_are_missing_are_counted_and_their_method_is_not_the_best(listed: Frames) -> None:
    rows = own_rows(table2.main_table(listed).printed)
    shown = {method: (row["Overall"][0], row["Seeds"][0]) for method, row in rows.items()}
    assert shown["GRPO-64"] == ("0.537 ± 0.035", "3 of 3"), "50, 54 and 57 of 100"
    assert shown["RISED"] == ("0.550", "1 of 3")
    assert shown["GRPO-128"] == ("0.500", "1 of 3")
    assert shown["Global Variance"] == ("–", "1 of 3")
    assert shown["Round-robin Variance"] == ("0.500 ± 0.000", "2 of 3")
    assert shown["All-Rubric SD"] == ("–", "not run")
    assert rows["RISED"]["Overall"][1] is Mark.NONE
    notes = table2.main_table(listed).printed.notes
    assert any(note.startswith("GRPO-128 seed 1: unfinished") for note in notes)
    assert any("Global Variance seed 0, WebShop at update 1: none of 100 episodes is valid" in n for n in notes)


def test_table_2_as_csv_has_planned_seeds_and_null_rows_for_what_has_no_value(listed: Frames) -> None:
    frame = table2.main_table(listed).frame
    own = frame[(frame["source"] == "this project") & (frame["environment"] == "overall")].set_index("method")
    assert own[["n", "n_planned"]].to_dict("index") == {
        "grpo_64": {"n": 3, "n_planned": 3},
        "grpo_128": {"n": 1, "n_planned": 3},
        "global_variance": {"n": 0, "n_planned": 3},
        "round_robin_variance": {"n": 2, "n_planned": 3},
        "all_rubric_sd": {"n": 0, "n_planned": 0},
        "rised": {"n": 1, "n_planned": 3},
        "warm_start": {"n": 7, "n_planned": 9},
    }
    assert pd.isna(own.loc["global_variance", "mean"]) and pd.isna(own.loc["rised", "std"])
    assert own.loc["round_robin_variance", "std"] == 0.0, "equal seeds have exactly no spread"
    assert (own.loc["global_variance", "valid"], own.loc["global_variance", "planned"]) == (0, 100)
    assert "nan" not in frame.to_csv(index=False).lower()


def test_equal_values_have_a_spread_of_exactly_zero() -> None:
    assert st.mean_std([0.1 + 0.2] * 12) == st.MeanStd(0.1 + 0.2, 0.0, 12)
