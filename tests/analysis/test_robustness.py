"""Every table and figure on damaged experiments: each says what is missing, or ends with one error."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import matplotlib.figure
import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis import AnalysisError, claims, costs
from analysis.figures import BuiltFigure, style
from analysis.formatting import to_latex, to_markdown
from analysis.frames import Frames
from analysis.registry import modules
from analysis.runs import find_experiment
from analysis.synthetic import write_experiment
from analysis.tables import BuiltTable, ablation, cost
from analysis.tables import claims as claims_table
from rised.records.compaction import compact
from rised.records.schemas import VERSION_KEY

NEED_ONE_TRAINING_ENVIRONMENT = {"table1", "table7", "table8", "transfer"}
"""They are about runs that train on one environment, and refuse others."""
NEED_MORE_THAN_RUNS = {"audit", "selector_overlap"}
"""They are about what a further stage made of finished runs, and refuse others; see test_audit_judge, test_overlaps."""


def products(kind: str) -> list[ModuleType]:
    names = [name for name in modules(kind) if name not in NEED_ONE_TRAINING_ENVIRONMENT | NEED_MORE_THAN_RUNS]
    return [import_module(f"analysis.{kind}.{name}") for name in names]


TABLES, FIGURES = products("tables"), products("figures")


def names(chosen: list[ModuleType]) -> list[str]:
    return [module.__name__.removeprefix("analysis.") for module in chosen]


def text_of(tables: list[BuiltTable]) -> str:
    cells = [cell.text for t in tables for g in t.printed.groups for row in g.rows for cell in row]
    return "\n".join([*cells, *[note for t in tables for note in t.printed.notes]])


def words_in(figure: matplotlib.figure.Figure) -> str:
    texts = [text.get_text() for axis in figure.axes for text in axis.texts] + [t.get_text() for t in figure.texts]
    return "\n".join(texts + [t.get_text() for legend in figure.legends for t in legend.get_texts()])


def without_run(grid: Path) -> None:
    shutil.rmtree(grid / "rised" / "seed-1")


def without_method(grid: Path) -> None:
    shutil.rmtree(grid / "rised")


def without_baseline(grid: Path) -> None:
    shutil.rmtree(grid / "grpo_64")


def nothing_finished(grid: Path) -> None:
    for done in grid.rglob("DONE"):
        done.unlink()


def without_tags(grid: Path) -> None:
    compacted_with(grid, ["metrics", "rollouts", "timings", "validation"])


def without_rollouts_and_tags(grid: Path) -> None:
    compacted_with(grid, ["metrics", "timings", "validation"])


def metrics_only(grid: Path) -> None:
    compacted_with(grid, ["metrics"])


def compacted_with(grid: Path, kinds: list[str]) -> None:
    """Replace finished runs by compacted ones that hold only ``kinds``; drop the unfinished."""
    for run in [folder for folder in sorted(grid.glob("*/seed-*")) if folder.is_dir()]:
        full = run.rename(run.with_name("full"))
        if (full / "DONE").exists():
            compact(full, run, kinds=kinds)
        shutil.rmtree(full)


DAMAGES = [
    without_run,
    without_method,
    without_baseline,
    nothing_finished,
    without_tags,
    without_rollouts_and_tags,
    metrics_only,
]


@pytest.fixture(scope="module", params=DAMAGES, ids=lambda damage: damage.__name__)
def damaged(request: pytest.FixtureRequest, grid: Path, tmp_path_factory: pytest.TempPathFactory) -> Frames:
    copy = shutil.copytree(grid, tmp_path_factory.mktemp("damaged") / "synthetic_grid")
    damage: Callable[[Path], None] = request.param
    damage(copy)
    return Frames(find_experiment(copy))


@pytest.mark.parametrize("module", TABLES, ids=names(TABLES))
def test_every_table_is_built_from_what_is_there(module: ModuleType, damaged: Frames) -> None:
    for table in module.build(damaged):
        assert table.printed.groups and table.printed.columns
        assert "nan" not in text_of([table]).lower().split()


@pytest.mark.parametrize("module", FIGURES, ids=names(FIGURES))
def test_every_figure_is_drawn_from_what_is_there(module: ModuleType, damaged: Frames) -> None:
    built: BuiltFigure = module.build(damaged)
    assert style.png_bytes(built.draw(style.LIGHT), 20)
    assert built.caption and built.notes


@pytest.mark.parametrize("module", TABLES, ids=names(TABLES))
def test_every_table_is_sound_latex_and_markdown(module: ModuleType, ablation_frames: Frames) -> None:
    for table in module.build(ablation_frames):
        width, latex = len(table.printed.columns), to_latex(table.printed)
        body = [line for line in latex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
        assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {width - 1}
        assert latex.isascii(), sorted({c for c in latex if not c.isascii()})
        cells = [re.findall(r"(?<!\\)\|", line) for line in to_markdown(table.printed).splitlines() if line[:1] == "|"]
        assert {len(found) for found in cells} == {width + 1}
        assert not table.frame.columns.duplicated().any()


@pytest.mark.parametrize("module", [*TABLES, *FIGURES], ids=names([*TABLES, *FIGURES]))
def test_an_unfinished_run_is_named_in_everything_that_reads_it(module: ModuleType, frames: Frames) -> None:
    """The fixture's unfinished run is Round-robin Variance seed 1; some products never read that method."""
    silent = {"table3", "table4", "table5", "table6", "figure4", "figure7", "figure8", "orsd_figure3", "orsd_table4"}
    built = module.build(frames)
    notes = list(built.notes) if isinstance(built, BuiltFigure) else [n for t in built for n in t.printed.notes]
    if module.__name__.rsplit(".", 1)[-1] not in silent:
        assert any("Round-robin Variance seed 1: unfinished at update 2 of 4" in note for note in notes)


@pytest.mark.parametrize("module", [*TABLES, *FIGURES], ids=names([*TABLES, *FIGURES]))
def test_synthetic_runs_are_called_synthetic_wherever_a_reader_meets_them(
    module: ModuleType, ablation_frames: Frames
) -> None:
    built = module.build(ablation_frames)
    if isinstance(built, BuiltFigure):
        assert any("SYNTHETIC" in note for note in built.notes)
        assert "SYNTHETIC" in words_in(built.draw(style.LIGHT))
    else:
        for table in built:
            heads = [group.head for group in table.printed.groups]
            assert any("SYNTHETIC" in text for text in [*heads, *table.printed.notes]), table.printed.name


def test_a_shard_of_another_schema_version_ends_with_one_error_that_names_it(grid: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(grid, tmp_path / "grid")
    shard = next((copy / "rised" / "seed-0" / "metrics").rglob("*.parquet"))
    table = pq.read_table(shard)
    size = shard.stat().st_size
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, VERSION_KEY: b"9"}), shard)
    manifest = copy / "rised" / "seed-0" / "manifests" / f"{shard.parent.name}.json"
    manifest.write_text(manifest.read_text().replace(f'"byte_count": {size}', f'"byte_count": {shard.stat().st_size}'))
    out = tmp_path / "out"
    for module in (claims_table, cost, import_module("analysis.figures.figure3")):
        assert module.main(["--runs", str(copy), "--out", str(out)]) == 1
    assert not out.exists() or not list(out.iterdir())


def test_a_step_that_lacks_tasks_is_refused_and_not_averaged(frames: Frames) -> None:
    partial = Frames(frames.experiment)
    rows = frames.validation
    last = (rows["method"] == "rised") & (rows["seed"] == 1) & (rows["step"] == 4) & (rows["environment"] == "webshop")
    lost = rows[last].index[:3]
    partial.__dict__["validation"] = rows.drop(index=lost)
    with pytest.raises(AnalysisError, match=r"rised/seed-1 was evaluated on 9 tasks of webshop at update 4.*has 12"):
        claims_table.build(partial)


def test_a_cost_with_a_hole_is_undefined_from_there_on(frames: Frames) -> None:
    partial = Frames(frames.experiment)
    metrics = frames.metrics
    lost = (metrics["name"] == "rollout/generated_tokens") & (metrics["step"] == 3) & (metrics["method"] == "rised")
    partial.__dict__["metrics"] = metrics[~lost]
    run = partial.experiment.of("rised")[0]
    totals = costs.run_costs(partial, run).set_index("step")
    assert np.isfinite(totals.loc[2, "generated_tokens"]) and np.isnan(totals.loc[[3, 4], "generated_tokens"]).all()
    assert np.isfinite(totals["device_s"]).all()


def test_an_ablation_without_its_cells_says_which_and_who_makes_them(frames: Frames) -> None:
    cells, effects = ablation.build(frames)
    assert "n/a (cells missing)" in text_of([effects]) and effects.frame.empty
    assert "RISED without teacher" in " ".join(effects.printed.notes)
    assert any("laptop_ablation" in note for note in cells.printed.notes)


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("figure3", "RISED without selection (not run)"),
        ("figure6", "All rubrics, with selection (not run)"),
        ("figure8", "Qwen3-14B (not run)"),
        ("figure5", "not evaluated in\nthis experiment"),
        ("orsd_figure2", "not run"),
        ("orsd_figure3", "ORSD (not run)"),
    ],
)
def test_a_figure_says_in_itself_and_in_its_notes_what_was_not_run(name: str, absent: str, frames: Frames) -> None:
    built = import_module(f"analysis.figures.{name}").build(frames)
    assert absent in words_in(built.draw(style.LIGHT))
    assert any("not run" in note or "no run here" in note or "makes" in note for note in built.notes)


def test_experiments_beside_it_join_figure_8_only_if_they_differ_in_the_judge_alone(tmp_path: Path) -> None:
    from analysis.figures import figure8

    for size, options in ((8, {}), (14, {"panel": "b"}), (32, {})):
        write_experiment(
            tmp_path, ("rised",), (0,), 2, 1, 3, f"synthetic_{size}b", judge_model=f"Q/Qwen3-{size}B", **options
        )
    frames = Frames(find_experiment(tmp_path, "synthetic_32b"))
    built = figure8.build(frames)
    assert set(built.frame["judge"]) == {"Qwen3-8B", "Qwen3-32B"}
    assert "Qwen3-14B of experiment synthetic_14b: left out, its task panels differ" in built.notes
    config = tmp_path / "synthetic_8b" / "rised" / "seed-0" / "config.yaml"
    config.write_text(config.read_text() + "learner: {learning_rate: 0.1}\n")
    notes = figure8.build(Frames(find_experiment(tmp_path, "synthetic_32b"))).notes
    assert any("left out, learner.learning_rate is 0.1 there and None here" in note for note in notes)
    verdict = claims.judge_sizes(claims.Evidence(frames, claims_table.comparison_frame(frames)))
    assert verdict.status is claims.Status.NOT_TESTED and "Qwen3-14B" in verdict.sentence
