"""Costs, examples, behaviour over training, claims, and the further figures, each against a count of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import behaviour, claims, costs, orsd
from analysis.examples import pick, pick_pair, shows
from analysis.figures import cost_curves, dynamics, figure3, figure5, figure7, orsd_figure2, orsd_figure3, style
from analysis.frames import Frames
from analysis.runs import find_experiment
from analysis.synthetic import JUDGE, JUDGE_DEVICES, write_experiment
from analysis.tables import ablation, cost, orsd_table1, table3, table4, table5, table6
from analysis.tables import claims as claims_table
from rised.records.compaction import compact
from rised.records.schemas import to_table
from rised.records.shards import write_shard


def rows_of(printed: object, group: int = 0) -> dict[str, list[str]]:
    return {row[0].text: [c.text for c in row[1:]] for row in printed.groups[group].rows}  # type: ignore[attr-defined]


# ---- costs


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    folder = tmp_path_factory.mktemp("judged")
    root = write_experiment(folder, ("grpo_64", "rised"), (0,), 4, 2, 6, judge_model="Qwen/Qwen3-8B")
    return Frames(find_experiment(root))


def test_totals_are_running_sums_of_what_the_shards_hold(frames: Frames) -> None:
    run = frames.experiment.of("rised")[0]
    totals = costs.run_costs(frames, run).set_index("step")
    metrics = run.reader.metrics().to_pandas().set_index(["name", "step"])["value"]
    times = run.reader.scan("timings").to_pandas().query("name == 'time/step'").set_index("step")["value"]
    for step in (1, 4):
        steps = range(1, step + 1)
        generated = sum(metrics["rollout/generated_tokens", s] for s in steps)
        assert totals.loc[step, "generated_tokens"] == generated
        assert totals.loc[step, "device_s"] == pytest.approx(sum(times[s] for s in steps))
    assert (totals["judge_device_s"] == 0).all() and (totals["judge_tokens"] == 0).all()


def test_a_judge_models_devices_are_held_for_every_step_in_which_it_was_asked(judged: Frames) -> None:
    run = judged.experiment.of("rised")[0]
    totals = costs.run_costs(judged, run).set_index("step")
    assert totals.loc[4, "judge_device_s"] == pytest.approx(JUDGE_DEVICES * totals.loc[4, "seconds"])
    assert totals.loc[4, "device_s"] == pytest.approx((1 + JUDGE_DEVICES) * totals.loc[4, "seconds"])
    busy = run.reader.scan("timings").to_pandas().query("name == 'judge/tag'")["value"].sum()
    assert totals.loc[4, "judge_busy_s"] == pytest.approx(JUDGE_DEVICES * busy)
    metrics = run.reader.metrics().to_pandas().groupby("name")["value"].sum()
    assert totals.loc[4, "judge_tokens"] == metrics["judge/prompt_tokens"] + metrics["judge/completion_tokens"]


def test_a_judge_at_an_unknown_address_leaves_device_seconds_unknown(judged: Frames, tmp_path: Path) -> None:
    copy = shutil.copytree(judged.experiment.path, tmp_path / "grid")
    for config in copy.rglob("config.yaml"):
        config.write_text("\n".join(line for line in config.read_text().splitlines() if "judge_server" not in line))
    frames = Frames(find_experiment(copy))
    assert np.isnan(costs.run_costs(frames, frames.experiment.runs[0])["device_s"]).all()
    assert any("devices unknown" in note for note in cost.build(frames)[0].printed.notes)
    assert "not recorded in\nthese shards" in [
        t.get_text() for axis in cost_curves.build(frames).draw(style.LIGHT).axes for t in axis.texts
    ]


def test_time_to_a_pass_rate_is_that_of_the_first_evaluation_at_or_above_it() -> None:
    data = pd.DataFrame(
        {
            "method": ["a"] * 3 + ["b"] * 3,
            "seed": [0] * 6,
            "step": [0, 10, 20] * 2,
            "pass_rate": [0.2, 0.5, 0.4, 0.2, 0.3, 0.39],
            **{name: [0.0, 10.0, 20.0] * 2 for name in costs.COSTS},
        }
    )
    found = costs.first_reached(data, 0.4).set_index("method")
    assert (found.loc["a", "step"], found.loc["a", "device_s"], found.loc["a", "reached"]) == (10, 10.0, True)
    assert not found.loc["b", "reached"] and np.isnan(found.loc["b", "device_s"])


def test_a_method_that_never_reached_the_rate_is_shown_so_and_counted(ablation_frames: Frames) -> None:
    printed = cost.time_table(ablation_frames, costs.cost_frame(ablation_frames)).printed
    for group in printed.groups:
        for row in group.rows:
            reached, total = map(int, row[1].text.split(" of "))
            assert total == 3 and (row[2].text == "not reached") == (reached == 0)


# ---- behaviour over training


def test_rates_are_shares_of_validly_tagged_rollouts_of_that_environment_only(ablation_frames: Frames) -> None:
    run = ablation_frames.experiment.of("rised")[0]
    counts = ablation_frames.tag_counts(run, JUDGE)
    chosen = (counts["environment"] == "dbbench") & (counts["rubric_id"] == "repeats_failed_action")
    counts = counts[chosen].set_index("step")
    rollouts = run.reader.scan("rollouts", ["rollout_id", "environment"], steps=[5]).to_pandas()
    tags = run.reader.scan("tags", steps=[5]).to_pandas().merge(rollouts, on="rollout_id")
    mine = tags[(tags["environment"] == "dbbench") & (tags["rubric_id"] == "repeats_failed_action")]
    assert counts.loc[5, "violates"] == (mine["state"] == "violates").sum()
    assert counts.loc[5, "error"] == (mine["status"] == "error").sum()
    assert counts.loc[5, list(behaviour.STATES)].sum() == len(mine)
    data = behaviour.rates(ablation_frames, ["rised"], ["repeats_failed_action"], "dbbench", "violates", 3)
    block = data[data["seed"] == 0].set_index("step")
    window = counts.loc[3:5]
    tagged = window[["violates", "absent", "demonstrates"]].to_numpy().sum()
    assert block.loc[5, "rate"] == pytest.approx(window["violates"].sum() / tagged)
    assert block.loc[[1, 2], "rate"].isna().all()


def curve(values: list[float], events: int = 20) -> pd.DataFrame:
    return pd.DataFrame({"step": range(1, len(values) + 1), "count": events, "tagged": 40, "rate": values})


@pytest.mark.parametrize(
    ("values", "events", "step", "reason"),
    [
        ([0.4, 0.3, 0.2, 0.1, 0.1], 20, 3, ""),
        ([0.4, 0.2, 0.3, 0.2, 0.1], 20, 4, ""),
        ([0.4, 0.3, 0.3, 0.3, 0.1], 20, None, "below half at the end only"),
        ([0.4, 0.3, 0.3, 0.3, 0.3], 20, None, "not halved"),
        ([0.4, 0.1, 0.1, 0.1, 0.1], 1, None, "2 events at first"),
        ([0.4], 20, None, "fewer than 3 updates"),
    ],
)
def test_half_level_is_where_a_rate_falls_to_half_and_stays(
    values: list[float], events: int, step: int | None, reason: str
) -> None:
    assert behaviour.half_level_step(curve(values, events), 2) == (step, reason)


def test_figure_7_marks_the_half_levels_of_its_mean_curves(ablation_frames: Frames) -> None:
    built = figure7.build(ablation_frames)
    assert set(built.frame["rubric_id"]) == set(figure7.RUBRICS)
    assert set(built.frame["method"]) == set(figure7.METHODS)
    assert any(note.startswith("RISED, half level by seed: repeats_failed_action") for note in built.notes)


# ---- examples


def test_the_example_is_the_latest_tagged_rollout_and_its_text_that_of_the_evidence_turn(frames: Frames) -> None:
    found, counted = pick(frames, "systematic_object_search", "alfworld")
    assert found is not None and found.step == 4 and found.method == "rised"
    run = next(r for r in frames.experiment.of("rised") if r.seed == found.seed)
    tags = run.reader.scan("tags", steps=[4]).to_pandas()
    shown = tags[(tags["rubric_id"] == "systematic_object_search") & (tags["state"] == "demonstrates")]
    assert found.rollout_id == shown["rollout_id"].min()
    turn = int(shown.set_index("rollout_id").loc[found.rollout_id, "evidence_turn"])
    assert (found.turn, found.action) == (turn + 1, f"synthetic action {turn}")
    assert 0 < counted.shown < counted.tagged


def test_a_pair_is_of_one_task_and_update_and_of_two_rollouts(ablation_frames: Frames) -> None:
    pair = pick_pair(ablation_frames, "revises_plan_after_failure", "repeats_failed_action", "alfworld")
    assert pair is not None
    first, second = pair
    assert (first.task_id, first.step, first.seed) == (second.task_id, second.step, second.seed)
    assert first.rollout_id != second.rollout_id
    assert [shows(found.rubric_id) for found in pair] == ["demonstrates", "violates"]


def test_compacted_runs_name_the_rollout_and_say_that_its_text_is_not_there(frames: Frames, tmp_path: Path) -> None:
    for whole in (False, True):
        root = tmp_path / str(whole)
        compact(frames.experiment.of("rised")[0].path, root / "rised" / "seed-0", full_rollouts=whole)
        found, _ = pick(Frames(find_experiment(root)), "systematic_object_search", "alfworld")
        assert found is not None and (found.action is not None) is whole
    text = rows_of(table3.build(Frames(find_experiment(tmp_path / "False")))[0].printed)["ALFWorld"]
    assert "what was said is not kept for this update" in text[2]


def test_examples_are_quoted_from_the_last_update_of_a_compacted_run(frames: Frames, tmp_path: Path) -> None:
    run = frames.experiment.of("rised")[0]
    compact(run.path, tmp_path / "rised" / "seed-0", last_texts=True)
    alone = Frames(find_experiment(tmp_path))
    found, counted = pick(alone, "systematic_object_search", "alfworld")
    expected, _ = pick(frames, "systematic_object_search", "alfworld")
    assert found == expected and found is not None and found.action is not None
    assert 0 < counted.shown < counted.tagged


def test_tables_3_and_4_give_shares_that_a_count_confirms(frames: Frames) -> None:
    frame = table4.build(frames)[0].frame.set_index("rubric")
    parts = []
    for run in frames.experiment.runs:
        rollouts = run.reader.scan("rollouts", ["rollout_id", "environment"]).to_pandas()
        parts.append(run.reader.scan("tags").to_pandas().merge(rollouts, on="rollout_id"))
    tags = pd.concat(parts)
    mine = tags[(tags["environment"] == "alfworld") & (tags["status"] == "ok")]
    mine = mine[mine["rubric_id"] == "repeats_failed_action"]
    assert frame.loc["repeats_failed_action", "share"] == pytest.approx((mine["state"] == "violates").mean())
    assert frame.loc["repeats_failed_action", "tagged"] == len(mine)


# ---- data and configuration


def test_table_5_counts_the_tasks_that_were_evaluated_and_played(frames: Frames) -> None:
    frame = table5.own_data(frames).set_index("environment")
    assert list(frame["validation_evaluated"]) == [12, 12, 12] and list(frame["train_played"]) == [4, 4, 4]


def test_table_6_reads_what_was_saved_with_the_runs(repository: Path) -> None:
    sample = repository / "data" / "sample_results" / "laptop_grid"
    printed = table6.build(Frames(find_experiment(sample)))[0].printed
    theirs = rows_of(printed, 0)
    assert theirs["Updates"] == ["1000", "1000", "60"]
    assert theirs["Max turns per episode"][2] == "18 (alfworld), 10 (webshop), 5 (dbbench)"
    assert rows_of(printed, 1)["KL coefficient"] == ["not published", "not published", "0.05"]


# ---- ablation and claims


def test_the_ablations_cells_and_effects_agree(ablation_frames: Frames) -> None:
    cells, effects = (table.frame for table in ablation.build(ablation_frames))
    rates = cells[cells["environment"] == "overall"].set_index(["selection", "teacher", "steering"])["mean"]
    main = effects.set_index("effect").loc["teacher"]
    assert main["estimate"] == pytest.approx(rates.xs(True, level=1).mean() - rates.xs(False, level=1).mean())
    assert main["p_holm"] >= main["p"]
    assert np.isfinite(main[["task_low", "task_high", "seed_low", "seed_high"]].to_numpy(dtype=float)).all()


def test_comparisons_cover_all_methods_and_holm_never_lowers_p(ablation_frames: Frames) -> None:
    frame = claims_table.comparison_frame(ablation_frames)
    assert len(frame) == 8 + 7 + 1 and frame["p"].notna().all()
    assert (frame["p_holm"] >= frame["p"]).all()
    assert (frame["simultaneous_low"] <= frame["task_low"]).all()
    assert np.allclose(frame["p_seeds_smallest"], 0.1) and (frame["seeds"] == 3).all()


def test_a_claim_without_its_runs_is_not_tested_and_names_them(frames: Frames) -> None:
    evidence = claims.Evidence(frames, claims_table.comparison_frame(frames))
    verdicts = {claim.key: claim.judge(evidence) for claim in claims.CLAIMS}
    assert verdicts["figure3"].status is claims.Status.NOT_TESTED
    assert "RISED without selection" in verdicts["figure3"].sentence
    assert verdicts["table2_best"].status is claims.Status.NOT_TESTED and "GRPO-128" in verdicts["table2_best"].sentence
    assert verdicts["orsd_table1"].status is claims.Status.NOT_TESTED
    assert verdicts["table2_baseline"].status is not claims.Status.NOT_TESTED


def test_a_claim_is_decided_only_when_the_corrected_p_is_small_and_few_seeds_are_said(frames: Frames) -> None:
    row = {"method": "rised", "against": "grpo_64", "difference": 0.1, "task_low": 0.05, "task_high": 0.15}
    row |= {"p_holm": 0.01, "p_seeds_smallest": 1 / 3, "tasks": 36, "seeds": 2, "seeds_against": 2}
    judge = claims.better("rised", "grpo_64")
    clear = judge(claims.Evidence(frames, pd.DataFrame([row])))
    assert clear.status is claims.Status.AGREES and "too few seeds" in clear.sentence
    assert "+10.0 points [+5.0, +15.0] over 36 tasks, 2 and 2 seeds" in clear.sentence
    worse = judge(claims.Evidence(frames, pd.DataFrame([row | {"difference": -0.1}])))
    assert worse.status is claims.Status.DISAGREES
    open_ = judge(claims.Evidence(frames, pd.DataFrame([row | {"p_holm": 0.06}])))
    assert open_.status is claims.Status.UNDECIDED and "do not tell them apart" in open_.sentence
    mirrored = claims.better("grpo_64", "rised")(claims.Evidence(frames, pd.DataFrame([row])))
    assert mirrored.status is claims.Status.DISAGREES and "−10.0 points [−15.0, −5.0]" in mirrored.sentence


# ---- further figures


def test_figure_3_draws_the_papers_three_arms_in_their_colours(ablation_frames: Frames) -> None:
    built = figure3.build(ablation_frames)
    assert set(built.frame["method"]) == {"rised", "rised_no_selection", "rised_selection_only"}
    axis = built.draw(style.LIGHT).axes[-1]
    for method in figure3.METHODS:
        colour, _ = style.style_of(method, style.LIGHT)
        lines = [line for line in axis.lines if line.get_color() == colour]
        rates = ablation_frames.pass_rates.query("method == @method and environment == 'overall'")
        thick = max(lines, key=lambda line: line.get_linewidth())
        assert np.allclose(thick.get_ydata(), rates.groupby("step")["pass_rate"].mean().to_numpy())
        assert len(lines) == 4


def test_figure_5_shows_appworld_and_its_overall_is_over_four_environments(tmp_path: Path) -> None:
    four = ("alfworld", "webshop", "dbbench", "appworld")
    frames = Frames(find_experiment(write_experiment(tmp_path, updates=2, every=1, tasks=5, environments=four)))
    built = figure5.build(frames)
    assert not any("not in this experiment's mix" in note for note in built.notes)
    rates = built.frame.pivot(index=["method", "seed", "step"], columns="environment", values="pass_rate")
    assert np.allclose(rates[list(four)].mean(axis=1), rates["overall"])


def test_an_arm_without_runs_is_named_with_the_experiment_that_makes_it(frames: Frames) -> None:
    arms = dynamics.method_arms(frames, ("rised", "rised_no_selection"))
    assert [arm.was_run for arm in arms] == [True, False]
    assert dynamics.absences(arms, "laptop_ablation") == [
        "RISED without selection: not run in this experiment; laptop_ablation makes it."
    ]


# ---- ORSD


def test_success_by_task_type_is_read_from_the_task_file(tmp_path: Path) -> None:
    root = write_experiment(tmp_path, ("grpo_64",), (0, 1), updates=2, every=1, tasks=6)
    frames = Frames(find_experiment(root))
    assert any("Task types are unknown" in note for note in orsd_table1.build(frames)[0].printed.notes)
    kinds = list(orsd.TYPES.values())
    tasks = sorted(frames.panel["alfworld"])
    payloads = [{"task_type": kinds[i % 2]} for i in range(len(tasks))]
    rows = [
        {"environment": "alfworld", "split": "validation", "task_id": t, "seed": 0, "payload": p, "content_hash": "x"}
        for t, p in zip(tasks, payloads, strict=True)
    ]
    write_shard(root / orsd.TASKS_FILE, to_table(rows, "tasks"))
    own = orsd.own_results(Frames(find_experiment(root))).set_index("method").loc["grpo_64"]
    final = frames.validation.query("step == 2 and environment == 'alfworld'").dropna(subset=["success"])
    for column, kind in (("pick", kinds[0]), ("look", kinds[1])):
        chosen = [t for t, p in zip(tasks, payloads, strict=True) if p["task_type"] == kind]
        expected = final[final["task_id"].isin(chosen)]["success"].astype(float).mean()
        assert own[column] == pytest.approx(100 * expected)
    assert np.isnan(own["heat"]) and own["seeds"] == 2


def test_orsd_figure_2_leaves_open_what_the_paper_does_not_print(frames: Frames) -> None:
    data = orsd_figure2.build(frames).frame
    theirs = data[data["source"] == "published"].set_index("alpha")["webshop_success"]
    assert theirs["0.01"] == 63.0 and theirs["0"] == 55.4 and theirs[["0.001", "0.1"]].isna().all()


def test_every_new_figure_states_its_finding_from_the_checked_in_findings(ablation_frames: Frames) -> None:
    for built in (figure3.build(ablation_frames), figure5.build(ablation_frames), figure7.build(ablation_frames)):
        assert any(note.startswith("The paper's finding (published):") for note in built.notes)
        assert json.dumps(list(built.notes))


@pytest.fixture(scope="module")
def orsd_frames(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    methods = ("grpo_64", "orsd", "orsd_alpha_0001", "orsd_alpha_01")
    return Frames(find_experiment(write_experiment(tmp_path_factory.mktemp("orsd"), methods, (0, 1), 4, 2, 6)))


def test_claims_on_orsd_are_held_against_its_runs_and_no_ranking_is_called_agreement(orsd_frames: Frames) -> None:
    evidence = claims.Evidence(orsd_frames, claims_table.comparison_frame(orsd_frames))
    first, alphas = claims.orsd_first(evidence), claims.orsd_alphas(evidence)
    assert first.status in (claims.Status.UNDECIDED, claims.Status.DISAGREES)
    assert "ORSD − GRPO-64" in first.sentence and "no ranking is tested: " in first.sentence
    assert alphas.status is claims.Status.UNDECIDED
    success = orsd.own_results(orsd_frames).set_index("method")["webshop_success"]
    for method in ("grpo_64", "orsd", "orsd_alpha_01"):
        assert f"{success[method]:.1f}" in alphas.sentence


def test_orsd_figure_3_shows_the_reward_that_training_saw_and_says_where_methods_saw_different_ones(
    orsd_frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = orsd_frames.metrics
    shaped = metrics[(metrics["method"] == "orsd") & (metrics["name"] == "rollout/reward/webshop")]
    shaped = shaped.assign(name="training_reward/webshop", value=shaped["value"] / 2)
    changed = Frames(orsd_frames.experiment)
    monkeypatch.setitem(changed.__dict__, "metrics", pd.concat([metrics, shaped], ignore_index=True))
    data = orsd_figure3.rewards(changed).set_index(["method", "environment"]).sort_index()
    raw = orsd_figure3.rewards(orsd_frames).set_index(["method", "environment"]).sort_index()
    mine, before = data.loc[("orsd", "webshop")], raw.loc[("orsd", "webshop")]
    assert set(mine["kind"]) == {"training_reward"} and len(mine) == len(before)
    np.testing.assert_allclose(mine["reward"], before["reward"] / 2)
    pd.testing.assert_frame_equal(data.loc[("grpo_64", "webshop")], raw.loc[("grpo_64", "webshop")])
    notes = orsd_figure3.build(changed).notes
    assert any(note.startswith("WebShop: some runs were trained on shaped rewards") for note in notes)
    assert not any("shaped" in note for note in orsd_figure3.build(orsd_frames).notes)
