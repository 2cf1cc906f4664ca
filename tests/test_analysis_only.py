"""Asked for tables only, the DAG never trains again: whatever became of code, configurations, tasks or clocks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_repository import REPOSITORY, Plan, finish

from stages.grid import Grid, read_grid

TRAINING = {"prepare", "evaluate_warm_start", "train", "gradient", "nano_policy"}
ONLY_SMOKE = ("--config", "experiment=smoke")


@pytest.fixture()
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Plan, Grid]]:
    """The smoke experiment with every product in place."""
    plan = Plan(tmp_path)
    monkeypatch.chdir(plan.folder)
    grid = read_grid({"experiment": "smoke"})
    finish(grid, plan.folder)
    yield plan, grid


def touch(plan: Plan, grid: Grid, *names: str, later_s: float = 1000.0) -> None:
    """Make files younger than every product."""
    moment = (plan.folder / grid.report).stat().st_mtime + later_s
    for name in names:
        os.utime(plan.folder / name, (moment, moment))


def configurations(plan: Plan) -> list[str]:
    return [str(path.relative_to(plan.folder)) for path in (plan.folder / "configs").rglob("*.yaml")]


@pytest.mark.parametrize("target", ["tables", "figures", "report", "publish"])
def test_touched_code_and_configurations_of_training_train_nothing(finished: tuple[Plan, Grid], target: str) -> None:
    plan, grid = finished
    code = ["stages/train.py", "stages/train.smk", "stages/prepare.smk", "rised/config/loader.py", "Snakefile"]
    touch(plan, grid, *code, *configurations(plan))
    assert TRAINING & set(plan.jobs(target, *ONLY_SMOKE)) == set()
    assert plan.jobs(*ONLY_SMOKE)["train"] == 2, "asked for all, changed configurations do train again"


STUB = """
import sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
file = out if out.suffix else out / "DONE"
file.parent.mkdir(parents=True, exist_ok=True)
file.write_text("stub")
"""


def test_edited_rules_of_training_train_nothing_even_when_all_runs_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for stage in ("prepare", "evaluate", "train"):
        (plan.folder / "stages" / f"{stage}.py").write_text(STUB)
    done = plan.snakemake("--cores", "1", "runs", *ONLY_SMOKE)
    assert done.returncode == 0, done.stderr
    rule = plan.folder / "stages" / "train.smk"
    rule.write_text(rule.read_text().replace("python -m stages.train", "python -m stages.train --verbose"))
    assert plan.jobs("runs", *ONLY_SMOKE) == {}
    assert TRAINING & set(plan.jobs("tables", *ONLY_SMOKE)) == set()
    everything = plan.jobs("runs", *ONLY_SMOKE, "--rerun-triggers", "code")
    assert everything["train"] == 2, "Snakemake did record the rule and would have noticed"


@pytest.mark.parametrize("product", ["tasks", "warm_start"])
def test_tasks_made_anew_or_from_a_clock_that_runs_ahead_train_nothing(
    finished: tuple[Plan, Grid], product: str
) -> None:
    plan, grid = finished
    touch(plan, grid, getattr(grid, product), later_s=1e8)
    assert TRAINING & set(plan.jobs("tables", *ONLY_SMOKE)) == set()


def test_a_run_that_is_missing_is_trained_and_finished_ones_are_not(finished: tuple[Plan, Grid]) -> None:
    plan, grid = finished
    missing, *others = grid.finished_runs
    for name in (missing, *grid.table_files):
        (plan.folder / name).unlink()
    touch(plan, grid, *configurations(plan))
    jobs = plan.jobs("tables", *ONLY_SMOKE)
    assert jobs["train"] == 1 and len(others) == 1


def test_one_tables_file_asked_for_by_name_trains_nothing(finished: tuple[Plan, Grid]) -> None:
    plan, grid = finished
    touch(plan, grid, grid.experiment_file)
    (plan.folder / grid.table_files[0]).unlink()
    jobs = plan.jobs(grid.table_files[0], *ONLY_SMOKE)
    assert jobs == {"table": 1, "total": 1}


def test_downloaded_shards_are_analysed_without_any_product_of_the_experiment(tmp_path: Path) -> None:
    plan = Plan(tmp_path / "plan")
    shutil.copytree(REPOSITORY / "data" / "sample_results" / "laptop_grid", tmp_path / "download")
    for target, rules in (
        ("tables", {"table"}),
        ("report", {"table", "figure", "report_file"}),
        ("publish", {"publish"}),
    ):
        jobs = plan.jobs(target, "--config", "experiment=laptop_grid", f"runs={tmp_path / 'download'}")
        assert set(jobs) - {"total", target} == rules - {target}


def test_a_dataset_from_elsewhere_is_checked_without_any_run(tmp_path: Path) -> None:
    plan = Plan(tmp_path / "plan")
    assert plan.jobs("verify", "--config", "experiment=smoke", f"dataset={tmp_path}") == {"verify": 1, "total": 1}
