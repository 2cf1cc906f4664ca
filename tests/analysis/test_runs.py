"""Discovery of runs, the check of panels, and frames that never average over what is not there."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis import AnalysisError
from analysis.figures.curves import mean_over_seeds
from analysis.frames import Frames, only_judge
from analysis.results import final_results
from analysis.runs import find_experiment
from analysis.synthetic import JUDGE, write_experiment
from analysis.tables.learning import learning_frame
from analysis.tables.table9 import cost_table
from rised.records.compaction import compact
from rised.records.types import TagState


def test_an_experiment_is_found_from_its_folder_and_from_the_results_folder(grid: Path) -> None:
    for root in (grid, grid.parent):
        experiment = find_experiment(root)
        assert experiment.methods == ["grpo_64", "round_robin_variance", "rised"]
        assert [(run.method, run.seed) for run in experiment.runs][:2] == [("grpo_64", 0), ("grpo_64", 1)]
    assert [run.label for run in experiment.unfinished] == ["Round-robin Variance seed 1"]


def test_an_empty_folder_and_a_choice_of_experiments_give_messages_that_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no run below"):
        find_experiment(tmp_path)
    with pytest.raises(AnalysisError, match="there is no folder"):
        find_experiment(tmp_path / "absent")
    for name in ("one", "two"):
        write_experiment(tmp_path, ("grpo_64",), (0,), updates=1, every=1, tasks=2, name=name)
    with pytest.raises(AnalysisError, match=r"several experiments \(one, two\); name one with --experiment"):
        find_experiment(tmp_path)
    assert find_experiment(tmp_path, "two").name == "two"


def test_a_seed_that_only_some_methods_have_is_named_as_missing(tmp_path: Path, grid: Path) -> None:
    copy = shutil.copytree(grid, tmp_path / "grid")
    shutil.rmtree(copy / "rised" / "seed-1")
    experiment = find_experiment(copy)
    assert experiment.missing == [("rised", 1)]
    assert "RISED seed 1: not run" in experiment.gaps()


def test_runs_over_different_panels_are_refused_with_their_names_and_hashes(tmp_path: Path) -> None:
    write_experiment(tmp_path, ("grpo_64",), (0, 1), updates=1, every=1, tasks=2)
    write_experiment(tmp_path, ("rised",), (0,), updates=1, every=1, tasks=2, panel="b")
    with pytest.raises(AnalysisError) as caught:
        Frames(find_experiment(tmp_path))
    message = str(caught.value)
    assert f"validation {'a' * 64}: grpo_64/seed-0, grpo_64/seed-1" in message
    assert f"validation {'b' * 64}: rised/seed-0" in message


def test_panels_are_compared_by_the_evaluated_tasks_too(tmp_path: Path) -> None:
    write_experiment(tmp_path, ("grpo_64",), (0,), updates=1, every=1, tasks=2)
    root = write_experiment(tmp_path, ("rised",), (0,), updates=1, every=1, tasks=3)
    with pytest.raises(AnalysisError, match=r"(?s)evaluated validation tasks.*grpo_64/seed-0.*rised/seed-0"):
        Frames(find_experiment(root))


def test_overall_is_the_mean_of_the_environments_and_absent_where_one_is_missing(frames: Frames) -> None:
    rates = frames.pass_rates.pivot(index=["method", "seed", "step"], columns="environment", values="pass_rate")
    mean = rates[["alfworld", "webshop", "dbbench"]].mean(axis=1)
    assert np.allclose(mean, rates["overall"], atol=1e-12)
    partial = Frames(frames.experiment)
    metrics = frames.metrics
    lost = (metrics["name"] == "validation/success/webshop") & (metrics["step"] == 2) & (metrics["method"] == "rised")
    partial.__dict__["metrics"] = metrics[~(lost & (metrics["seed"] == 0))]
    partial.__dict__["validation"] = frames.validation.iloc[:0]
    kept = partial.pass_rates.query("method == 'rised' and seed == 0 and environment == 'overall'")
    assert sorted(kept["step"]) == [0, 4]


def test_unfinished_runs_are_outside_the_final_means_and_named(frames: Frames) -> None:
    assert frames.final_step == 4
    assert [run.seed for run in frames.final_runs("round_robin_variance")] == [0]
    assert frames.left_out()[0] == (
        "Round-robin Variance seed 1: unfinished at update 2 of 4; not in the means of final results"
    )


def test_an_unfinished_run_with_an_evaluation_at_the_final_update_enters_no_mean(grid: Path, tmp_path: Path) -> None:
    """A run that stopped between its last evaluation and its end has a rate at the final update, but no DONE."""
    copy = shutil.copytree(grid, tmp_path / "grid")
    (copy / "rised" / "seed-1" / "DONE").unlink()
    cut = Frames(find_experiment(copy))
    alone = cut.rate(cut.experiment.of("rised")[0], 4, "overall")
    assert cut.last_evaluated(cut.experiment.of("rised")[1]) == cut.final_step == 4
    assert [run.seed for run in cut.final_runs("rised")] == [0]
    row = final_results(cut).set_index(["method", "environment"]).loc[("rised", "overall")]
    assert (row["mean"], row["n"], row["n_planned"]) == (pytest.approx(alone, abs=1e-12), 1, 2)
    outcomes = cut.outcomes("rised")
    assert outcomes is not None and {len(values_ST) for values_ST in outcomes.values()} == {1}
    learned = learning_frame(cut).set_index(["method", "seed", "environment"])["final"]
    assert np.isnan(learned["rised", 1, "overall"]) and learned["rised", 0, "overall"] == pytest.approx(alone)
    totals = cost_table(cut).frame.set_index("method")["tokens"]
    metrics = cut.metrics.query("name == 'rollout/tokens' and method == 'rised' and seed == 0")
    assert totals["rised"] == pytest.approx(metrics["value"].sum())


def test_outcomes_have_one_row_per_final_run_and_agree_with_the_stored_rates(frames: Frames) -> None:
    outcomes = frames.outcomes("rised")
    assert outcomes is not None
    for environment, values_ST in outcomes.items():
        assert values_ST.shape == (2, 12)
        for row, run in zip(values_ST, frames.final_runs("rised"), strict=True):
            assert np.nanmean(row) == pytest.approx(frames.rate(run, 4, environment))


def test_a_curve_is_averaged_only_where_every_finished_seed_has_a_value(frames: Frames) -> None:
    rates = frames.pass_rates.query("method == 'grpo_64' and environment == 'overall'")
    short = rates[~((rates["seed"] == 1) & (rates["step"] == 2))]
    assert list(mean_over_seeds(short, {0, 1}, "pass_rate")["step"]) == [0, 4]
    assert list(mean_over_seeds(short, {0}, "pass_rate")["step"]) == [0, 2, 4]


def test_rubric_counts_equal_a_count_by_hand_and_tag_errors_are_no_state(frames: Frames) -> None:
    run = frames.experiment.of("rised")[0]
    counts = frames.rubric_counts(run, JUDGE).set_index(["step", "rubric_id"])
    tags = run.reader.scan("tags", steps=[3]).to_pylist()
    for rubric in {tag["rubric_id"] for tag in tags}:
        mine = [tag for tag in tags if tag["rubric_id"] == rubric]
        row = counts.loc[(3, rubric)]
        for state in TagState:
            assert row[state.value] == sum(tag["state"] == state.value for tag in mine)
        assert row["error"] == sum(tag["status"] == "error" for tag in mine)
        assert row[["demonstrates", "violates", "absent", "error"]].sum() == len(mine)


def test_a_compacted_run_gives_the_same_numbers_as_the_full_one(frames: Frames, tmp_path: Path) -> None:
    small = tmp_path / "small"
    for run in frames.experiment.runs:
        if run.complete:
            compact(run.path, small / run.method / f"seed-{run.seed}")
    compacted = Frames(find_experiment(small))
    run, full = compacted.experiment.of("rised")[0], frames.experiment.of("rised")[0]
    assert only_judge([run]) == JUDGE
    left, right = (
        of.rubric_counts(r, JUDGE).sort_values(["step", "rubric_id"], ignore_index=True).astype({"step": int})
        for of, r in ((compacted, run), (frames, full))
    )
    assert left.equals(right)
    for environment, values in (compacted.outcomes("rised") or {}).items():
        assert np.array_equal(values, (frames.outcomes("rised") or {})[environment], equal_nan=True)


def test_the_analysis_runs_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    grid = write_experiment(tmp_path, updates=2, every=2, seeds=(0,), tasks=4)
    script = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "deepspeed", "vllm", "submitit"}:
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, NoTorch())
import analysis.report.page
from analysis.report.__main__ import main
analysis.report.page.SCREEN_DPI = 40
code = main(["--runs", sys.argv[1], "--out", sys.argv[2]])
heavy = [name for name in sys.modules if name.split(".")[0] == "torch"]
assert not heavy, heavy
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(grid), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_the_analysis_imports_only_records_vocabulary_and_profiles_of_the_library() -> None:
    allowed = (
        "rised.records",
        "rised.statistics",
        "rised.config.paths",
        "rised.rubrics.base",
        "rised.rubrics.profiles",
        "rised.rubrics.vocabulary",
    )
    for path in Path(analysis.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
            )
            for name in names:
                assert name.split(".")[0] not in {"torch", "stages"}, f"{path}: {name}"
                if name.split(".")[0] == "rised":
                    assert name.startswith(allowed), f"{path}: {name}"


def test_a_wrong_input_ends_with_one_message_and_exit_code_1(tmp_path: Path) -> None:
    root = write_experiment(tmp_path, ("grpo_64",), (0,), updates=1, every=1, tasks=2)
    shard = next((root / "grpo_64" / "seed-0" / "metrics").rglob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-20])
    done = subprocess.run(
        [sys.executable, "-m", "analysis.tables.table2", "--runs", str(root), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and str(shard.name) in done.stderr and "Traceback" not in done.stderr


def test_the_headers_of_synthetic_runs_say_that_they_are_synthetic(grid: Path) -> None:
    for header in grid.rglob("manifest.json"):
        assert json.loads(header.read_text())["synthetic"] is True
