"""Tables 1 and 7 from runs whose profiles, gradients and pass rates are set by hand (synthetic)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import AnalysisError, correlation, published
from analysis.correlation import within
from analysis.figures import style
from analysis.figures import transfer as transfer_figure
from analysis.frames import Frames
from analysis.registry import FIGURES, TABLES, sections
from analysis.runs import find_experiment
from analysis.tables import table1, table7, table8
from analysis.transfer import SIGNALS, transfer
from rised.records.commit import RunDirectory
from rised.records.schemas import to_table
from rised.records.types import Gradient, Metric, Rollout, StopReason, Tag, TagState, TagStatus
from rised.rubrics.vocabulary import load_vocabulary
from stages.compact import compact_experiment

JUDGE = "rules-test"
ENVIRONMENTS = ("webshop", "alfworld", "dbbench")
SHOWN, OTHER, AVOIDED = "revises_plan_after_failure", "systematic_object_search", "repeats_failed_action"
TASKS = 10
BASELINE, CHECKPOINTS = 5, (10, 15, 20, 25)
CONFIG = """
updates: 25
rubrics: {window_steps: 2}
training_environments: [webshop]
environments: {webshop: {}, alfworld: {}, dbbench: {}}
"""

Shares = Mapping[str, int]
"""rubric -> how many of the ten rollouts show it."""


def rollout(split: str, environment: str, step: int, index: int, success: bool = False) -> Rollout:
    return Rollout(
        rollout_id=f"{split}-{step}-{environment}-{index}",
        run="test",
        step=step,
        weight_version=step,
        split=split,
        environment=environment,
        task_id=f"task-{index}",
        group_id=f"{environment}-{index}",
        rollout_index=0,
        seed=index,
        system_prompt="",
        steering_rubrics=(),
        steering_text="",
        steering_text_hash="",
        turns=(),
        final_observation="",
        token_ids=(),
        policy_mask=(),
        logprobs=(),
        reward=float(success),
        reward_valid=True,
        success=success,
        stop_reason=StopReason.ENVIRONMENT_DONE,
    )


def tagged(
    split: str, environment: str, step: int, shares: Shares, rate: float = 0.0
) -> tuple[list[Rollout], list[Tag]]:
    """Ten rollouts of ten tasks, the first ``shares[rubric]`` of which show the rubric; ``rate`` of them succeed."""
    rollouts = [rollout(split, environment, step, i, i < round(TASKS * rate)) for i in range(TASKS)]
    tags = []
    for index, one in enumerate(rollouts):
        for rubric in (SHOWN, OTHER, AVOIDED):
            state = TagState.VIOLATES if rubric == AVOIDED else TagState.DEMONSTRATES
            seen = index < shares.get(rubric, 0)
            tags.append(Tag(one.rollout_id, rubric, state if seen else TagState.ABSENT, None, JUDGE, TagStatus.OK))
    return rollouts, tags


def validation_shares(environment: str, step: int) -> Shares:
    """Held-out environments come nearer to the training profile (``SHOWN`` alone) from checkpoint to checkpoint."""
    if environment == "webshop":
        return {SHOWN: 8, AVOIDED: 2}
    return {SHOWN: min(10, step // 5 + (environment == "dbbench")), OTHER: 5}


def pass_rate(environment: str, step: int) -> float:
    return {"webshop": 0.2, "alfworld": 0.1, "dbbench": 0.3}[environment] + 0.02 * step


def write_run(
    path: Path, *, tags: bool = True, gradients: bool = True, finish: bool = True, config: str = CONFIG, rate=pass_rate
) -> None:
    with RunDirectory(path) as run:
        run.write_config(config)
        experiment, method, seed = path.parts[-3:]
        identity = {"experiment": experiment, "method": method, "seed": int(seed.removeprefix("seed-"))}
        hashes = {"vocabulary_hash": load_vocabulary().hash, "panel_hashes": {"validation": "a" * 64}}
        run.write_header({**identity, **hashes, "judge": JUDGE})
        run.recover()
        for step in range(CHECKPOINTS[-1] + 1):
            write_step(run, step, tags, rate)
        if finish:
            run.finish(CHECKPOINTS[-1])
    if gradients:
        write_gradients(path / "gradient_signal")


def write_step(run: RunDirectory, step: int, with_tags: bool, rate) -> None:
    training, training_tags = tagged("train", "webshop", step, {SHOWN: 10}) if step else ([], [])
    evaluated = step % 5 == 0
    validation = [
        tagged("validation", name, step, validation_shares(name, step), rate(name, step))
        for name in ENVIRONMENTS * evaluated
    ]
    rollouts, tags = ([item for part in validation for item in part[which]] for which in (0, 1))
    name = "/".join(run.path.parts[-3:])
    rollouts, training = ([replace(one, run=name) for one in part] for part in (rollouts, training))
    metrics = [Metric(step, f"validation/success/{name}", rate(name, step), "fraction") for name in ENVIRONMENTS]
    metrics += [Metric(step, f"validation/tasks/{name}", float(TASKS), "count") for name in ENVIRONMENTS]
    expected = {"validation": len(rollouts)} if evaluated else {}
    with run.step(step, expected | ({"rollouts": TASKS} if step else {})) as writer:
        if evaluated:
            writer.write("validation", to_table(rollouts))
        if step:
            writer.write("rollouts", to_table(training))
        if with_tags and evaluated:
            writer.write("validation_tags", to_table(tags), judge=JUDGE)
        if with_tags and step:
            writer.write("tags", to_table(training_tags), judge=JUDGE)
        writer.write("metrics", to_table(metrics if evaluated else [], "metrics"))
        writer.commit()


def write_gradients(path: Path) -> None:
    """Cosines that rise in alfworld; dbbench's gradient is zero at checkpoint 15."""
    with RunDirectory(path) as run:
        run.write_config("seed: 0\n")
        run.recover()
        for step in CHECKPOINTS:
            cosines = {"webshop": 0.9, "alfworld": 0.01 * step, "dbbench": None if step == 15 else 0.5}
            rows = [Gradient(step, "webshop", "train", "layer", "2", 100, 4, 4, 16, 1.0, None)]
            rows += [
                Gradient(step, name, "validation", "layer", "2", 100, 4, 4, 16, 0.0 if value is None else 1.0, value)
                for name, value in cosines.items()
            ]
            with run.step(step, {"gradients": len(rows)}) as writer:
                writer.write("gradients", to_table(rows))
                writer.commit()
        run.finish(CHECKPOINTS[-1], CHECKPOINTS)


def frames_of(root: Path, seeds: Sequence[int] = (0,), **options: object) -> Frames:
    for seed in seeds:
        write_run(root / "grpo_64" / f"seed-{seed}", **options)  # type: ignore[arg-type]
    return Frames(find_experiment(root))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    return frames_of(tmp_path_factory.mktemp("transfer") / "webshop_only")


def own(built: object, row: str, statistic: str) -> dict[str, tuple[float, str]]:
    """signal -> (value, status) of our row of a table."""
    frame = built.frame  # type: ignore[attr-defined]
    found = frame[(frame["source"] == "this project") & (frame["validation_envs"] == row)]
    found = found[found["statistic"] == statistic]
    return {r["signal"]: (r["value"], r["status"]) for r in found.to_dict("records")}


def test_a_similarity_is_the_cosine_of_training_and_validation_profile_and_an_improvement_is_from_the_baseline(
    frames: Frames,
) -> None:
    pairs = transfer(frames, "webshop").pairs.set_index(["step", "environment"])
    assert sorted(set(pairs.index.get_level_values("step"))) == list(CHECKPOINTS)
    for step in CHECKPOINTS:
        for name in ("alfworld", "dbbench"):
            shown, other = validation_shares(name, step)[SHOWN], validation_shares(name, step)[OTHER]
            assert pairs.loc[(step, name), "rubric_pos"] == pytest.approx(shown / np.hypot(shown, other))
            assert pairs.loc[(step, name), "rubric_neg"] == 0
        assert pairs.loc[(step, "webshop"), "rubric_pos"] == pytest.approx(1.0)
        assert pairs.loc[(step, "webshop"), "rubric_all"] == pytest.approx(8 / np.hypot(8, 2))
        for name in ENVIRONMENTS:
            assert pairs.loc[(step, name), "improvement"] == pytest.approx(0.02 * (step - BASELINE))


def test_the_table_pools_checkpoints_and_environments_and_holds_out_the_training_environment(frames: Frames) -> None:
    built = table1.build(frames)[0]
    pairs = transfer(frames).pairs
    for row, kept in (("held_out", pairs[pairs["environment"] != "webshop"]), ("all_env", pairs)):
        expected = correlation.correlate(kept["rubric_pos"].tolist(), kept["improvement"].tolist())
        assert expected.n == (8 if row == "held_out" else 12)
        for statistic in ("spearman", "pearson"):
            value, status = own(built, row, statistic)["rubric_pos"]
            assert (value, status) == (getattr(expected, statistic), "ok")
    assert own(built, "held_out", "spearman")["rubric_pos"][0] > 0.9


def test_published_numbers_stand_unchanged_above_ours(frames: Frames) -> None:
    built = table1.build(frames)[0]
    first = built.printed.groups[0].rows[0]
    assert [cell.text for cell in first] == [
        "Held-out, ρ",
        *["−0.52", "0.04", "0.60", "−0.69", "0.30", "0.43", "0.18"],
        "–",
    ]
    assert "published" in built.printed.groups[0].head and "this project" in built.printed.groups[1].head
    paper = published.load("rised_table7_dbbench_only_correlation")
    assert set(paper.columns) - {"validation_envs", "statistic"} == set(SIGNALS) - {"gradient_projection"}


def test_what_is_undefined_is_shown_with_its_reason_and_never_as_a_number(frames: Frames) -> None:
    built = table1.build(frames)[0]
    held_out = own(built, "held_out", "spearman")
    assert np.isnan(held_out["rubric_neg"][0]) and held_out["rubric_neg"][1] == "undefined: constant"
    cells = dict(zip(built.printed.columns, built.printed.groups[1].rows[0], strict=True))
    assert cells["Rubric neg"].text == "n/a (constant)"
    assert any("ALFWorld: no rubric of rubric_neg is shown at 4 checkpoints" in note for note in built.printed.notes)
    printed = [c.text for t in table1.build(frames) for g in t.printed.groups for row in g.rows for c in row]
    assert not any("nan" in text.lower() for text in printed)


def test_a_pair_without_a_gradient_is_left_out_as_a_pair_and_counted(frames: Frames) -> None:
    built = table1.build(frames)[0]
    assert own(built, "held_out", "spearman")["gradient_full_layer"][1] == "ok, n = 7 of 8"
    assert own(built, "held_out", "spearman")["gradient_projection"][1] == "undefined: n < 3"


def test_untagged_and_unmeasured_runs_say_so(tmp_path: Path) -> None:
    built = table1.build(frames_of(tmp_path / "webshop_only", tags=False, gradients=False))[0]
    assert own(built, "all_env", "pearson")["skill_all"][1].startswith("undefined: training or validation is not")
    assert own(built, "all_env", "pearson")["gradient_full_layer"][1] == "undefined: not measured (stages.gradient)"
    assert any("not measured (stages.gradient)" in note for note in built.printed.notes)


def test_an_improvement_that_never_changes_is_constant_not_zero(tmp_path: Path) -> None:
    still = frames_of(tmp_path / "webshop_only", rate=lambda name, step: 0.2)
    built = table1.build(still)[0]
    statuses = {status for _, status in own(built, "all_env", "spearman").values()}
    assert statuses == {"undefined: constant", "undefined: n < 3"}
    assert any("GRPO-64, held-out: the improvement is the same in all pairs" in note for note in built.printed.notes)


def test_the_intervals_resample_checkpoints_and_within_environments_the_means_are_gone(frames: Frames) -> None:
    frame = table1.build(frames)[1].frame.set_index(["validation_envs", "signal"])
    row = frame.loc[("all_env", "rubric_pos")]
    assert row["spearman_low"] <= row["spearman"] <= row["spearman_high"] and row["draws"] == 2000
    assert row["within_spearman"] > row["spearman"], "the training environment's similarity stands still at 1"
    assert frame.loc[("held_out", "rubric_neg"), "within_status"] == "undefined: constant within environments"


def test_seeds_are_pooled_and_an_unfinished_run_is_left_out_and_named(tmp_path: Path) -> None:
    root = tmp_path / "webshop_only"
    two = frames_of(root, seeds=(0, 1))
    assert own(table1.build(two)[0], "all_env", "spearman")["rubric_pos"][1] == "ok"
    assert len(transfer(two).pairs) == 24
    (root / "grpo_64" / "seed-1" / "DONE").unlink()
    built = table1.build(Frames(find_experiment(root)))[0]
    assert built.frame.query("source == 'this project' and validation_envs == 'all_env'")["n_given"].unique() == [12]
    assert any("seed 1: unfinished" in note for note in built.printed.notes)


def test_a_compacted_experiment_gives_the_same_tables(frames: Frames, tmp_path: Path) -> None:
    compact_experiment(frames.experiment.path, tmp_path / "webshop_only")
    compacted = Frames(find_experiment(tmp_path / "webshop_only"))
    for whole, small in zip(table1.build(frames), table1.build(compacted), strict=True):
        assert whole.frame.equals(small.frame)


@pytest.mark.parametrize(
    ("table", "config", "words"),
    [
        (table7, CONFIG, "these runs train on WebShop, the table is about training on DBBench"),
        (table1, CONFIG.replace("[webshop]", "null"), "one training environment"),
    ],
)
def test_runs_that_the_table_is_not_about_are_refused(tmp_path: Path, table: object, config: str, words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        table.build(frames_of(tmp_path / "other", config=config))  # type: ignore[attr-defined]


def test_tags_of_another_vocabulary_are_refused(frames: Frames, tmp_path: Path) -> None:
    shutil.copytree(frames.experiment.path, tmp_path / "webshop_only")
    header = tmp_path / "webshop_only" / "grpo_64" / "seed-0" / "manifest.json"
    header.write_text(header.read_text().replace(load_vocabulary().hash, "e" * 64))
    with pytest.raises(AnalysisError, match="vocabulary eeeeeeeeeeee"):
        table1.build(Frames(find_experiment(tmp_path / "webshop_only")))


def test_the_figure_shows_every_pair_and_says_why_a_panel_is_empty(frames: Frames, tmp_path: Path) -> None:
    built = transfer_figure.build(frames)
    assert len(built.frame) == 12
    axes = built.draw(style.LIGHT).axes
    assert [sum(len(c.get_offsets()) for c in axis.collections) for axis in axes] == [12, 12, 11]
    assert "ρ" in axes[0].get_xlabel()
    bare = transfer_figure.build(frames_of(tmp_path / "webshop_only", tags=False, gradients=False))
    texts = [axis.texts[0].get_text() for axis in bare.draw(style.DARK).axes]
    assert texts[0].startswith("training or validation is not tagged") and texts[2].startswith("not measured")


def test_the_report_shows_the_named_modules_in_its_own_order_and_others_last() -> None:
    found = sections(["table9", "table1", "mine"], ["figure2", "transfer"])
    assert [(s.anchor, s.tables, s.figures) for s in found] == [
        ("transfer", ("table1",), ("transfer",)),
        ("dynamics", (), ("figure2",)),
        ("time", ("table9",), ()),
        ("further", ("mine",), ()),
    ]
    assert [s.anchor for s in sections(TABLES, FIGURES)] == [
        "results",
        "learning-section",
        "dynamics",
        "rubrics",
        "time",
    ]


# ---- tagged twice


def write_second_tags(run: Path, other: Mapping[str, int], judge: str = JUDGE) -> None:
    """The same tags again, but for alfworld's validation, in which ``other`` is shown."""
    with RunDirectory(run / "second_tags") as out:
        out.write_config(CONFIG)
        out.write_header({"judge": judge})
        out.recover()
        needed = sorted({step for checkpoint in CHECKPOINTS for step in (checkpoint - 1, checkpoint)})
        for step in needed:
            with out.step(step) as record:
                _, tags = tagged("train", "webshop", step, {SHOWN: 10})
                record.write("tags", to_table([replace(tag, judge=judge) for tag in tags]), judge=judge)
                if step in CHECKPOINTS:
                    for name in ENVIRONMENTS:
                        shares = validation_shares(name, step) | (other if name == "alfworld" else {})
                        _, tags = tagged("validation", name, step, shares)
                        tags = [replace(tag, judge=judge) for tag in tags]
                        record.write("validation_tags", to_table(tags), judge=judge)
                record.commit()
        out.finish(needed[-1], needed)


def table8_of(root: Path, other: Mapping[str, int], judge: str = JUDGE) -> tuple[Frames, pd.DataFrame]:
    frames = frames_of(root)
    write_second_tags(root / "grpo_64" / "seed-0", other, judge)
    frame = table8.build(frames)[0].frame
    return frames, frame[frame["source"] == "this project"].set_index("signal")


def test_equal_tags_agree_exactly_and_what_is_constant_is_undefined(tmp_path: Path) -> None:
    _, rows = table8_of(tmp_path / "webshop_only", {})
    row = rows.loc["rubric_demonstrates"]
    assert row["signal_pearson_r"] == pytest.approx(1) and row["mean_abs_difference"] == row["max_abs_delta_rho"] == 0
    assert rows.loc["rubric_violates", "status"].startswith("r undefined (constant); Held-out ρ 1")
    assert np.isnan(rows.loc["rubric_violates", "held_out_rho_run1"])


def test_the_difference_of_two_taggings_is_that_of_the_similarities(tmp_path: Path) -> None:
    frames, rows = table8_of(tmp_path / "webshop_only", {OTHER: 9})
    expected = []
    for step in CHECKPOINTS:
        shown = validation_shares("alfworld", step)[SHOWN]
        expected.append(abs(shown / np.hypot(shown, 9) - shown / np.hypot(shown, 5)))
    row = rows.loc["rubric_demonstrates"]
    assert row["mean_abs_difference"] == pytest.approx(sum(expected) / 12)
    assert row["signal_pearson_r"] < 1
    one, two = (transfer(frames, second=second).pairs for second in (False, True))
    for which, pairs in ((1, one), (2, two)):
        kept = pairs[pairs["environment"] != "webshop"]
        found = correlation.correlate(kept["rubric_pos"].tolist(), kept["improvement"].tolist())
        assert row[f"held_out_rho_run{which}"] == pytest.approx(found.spearman)
    changes = [abs(row[f"{r}_rho_run1"] - row[f"{r}_rho_run2"]) for r in ("held_out", "all_env")]
    assert row["max_abs_delta_rho"] == pytest.approx(max(changes)) and max(changes) > 0


def test_runs_that_were_not_tagged_twice_by_one_judge_are_refused(frames: Frames, tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"not tagged a second time \(stages.retag\)"):
        table8.build(frames)
    with pytest.raises(AnalysisError, match="another judge than rules-test"):
        table8_of(tmp_path / "webshop_only", {}, "rules-other")


def test_the_published_rows_of_table_8_stand_unchanged_above_ours(tmp_path: Path) -> None:
    frames, _ = table8_of(tmp_path / "webshop_only", {})
    printed = table8.build(frames)[0].printed
    first = [cell.text for cell in printed.groups[0].rows[0]]
    assert first == ["Rubric all", "0.9992", "0.0115", "0.595", "0.588", "0.814", "0.809", "0.007"]
    assert len(printed.groups[0].rows) == 5 and len(printed.groups[1].rows) == 6
    assert any("two runs of it agree by construction" in note for note in printed.notes)


# ---- correlations within environments


def test_within_environments_the_sign_of_a_pooled_correlation_can_turn() -> None:
    signal = [0.0, 0.1, 0.2, 0.8, 0.9, 1.0]
    improvement = [0.2, 0.1, 0.0, 1.0, 0.9, 0.8]
    groups = ["alfworld"] * 3 + ["dbbench"] * 3
    assert correlation.correlate(signal, improvement).pearson > 0.8
    found = within(signal, improvement, groups)
    assert found.pearson == pytest.approx(-1) and found.spearman == pytest.approx(-1)


def test_within_equals_the_partial_correlation_of_a_regression_on_the_environments() -> None:
    rng = np.random.default_rng(4)
    names = np.repeat(["a", "b", "c"], 8)
    x, y = rng.normal(size=24), rng.normal(size=24)
    dummies = np.stack([(names == name).astype(float) for name in "abc"], axis=1)
    left = [values - dummies @ np.linalg.lstsq(dummies, values, rcond=None)[0] for values in (x, y)]
    found = within(x.tolist(), y.tolist(), names.tolist())
    assert found.pearson == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-12)


def test_within_needs_more_pairs_than_environments_and_something_that_moves() -> None:
    assert within([1, 2, 3], [3, 2, 1], ["a", "b", "c"]).reason == "n − environments < 2"
    assert within([1, 1, 2, 2], [1, 2, 3, 4], ["a", "a", "b", "b"]).reason == "constant within environments"
    assert within([1, 2, None, 2], [1, 2, 3, 4], ["a", "a", "b", "b"]).status == "undefined: n − environments < 2"
