"""Measurements become files, ratios and the documentation's tables; recorded episodes play again to the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.paper_latencies import TABLE, Latencies
from benchmarks.replay import Recording, RecordingEngine, RecordingPool, ReplayEngine, ReplayPool
from benchmarks.results import RESULTS, Measurement, against, number, read, rendered, table, write

DOCUMENTS = ("docs/performance.md",)


def row(arm: str, repetition: int, value: float) -> Measurement:
    return Measurement("example", "case", arm, repetition, "s (wall)", value)


def test_ratios_are_taken_within_a_repetition() -> None:
    rows = against([row("a", 0, 2.0), row("b", 0, 6.0), row("a", 1, 10.0), row("b", 1, 5.0)], "a")
    assert [r.ratio for r in rows] == [None, 3.0, None, 0.5]
    assert [r.ratio for r in against(rows, "a", inverse=True)] == [None, 1 / 3, None, 2.0]


def test_measurements_come_back_from_their_file(tmp_path: Path) -> None:
    rows = against([row("a", n, n + 1.0) for n in range(3)] + [row("b", n, 2.0) for n in range(3)], "a")
    assert write(rows, tmp_path).name == "example.parquet"
    assert read("example", tmp_path) == rows
    with pytest.raises(ValueError, match="one benchmark"):
        write([*rows, Measurement("other", "c", "a", 0, "s", 1.0)], tmp_path)


def test_a_marked_table_is_written_from_its_file_and_nothing_else_is_touched(tmp_path: Path) -> None:
    write([row("a", n, value) for n, value in enumerate((1.0, 2.0, 30.0))], tmp_path)
    text = "before\n\n<!-- benchmark: example -->\nold\n<!-- end of the table -->\n\nafter\n"
    after = rendered(text, tmp_path)
    assert "| case | a | 2.00 (1.50 to 16.0) | s (wall) | – | 3 |" in after
    assert after.startswith("before\n") and after.endswith("\nafter\n") and "old" not in after
    assert rendered(after, tmp_path) == after


@pytest.mark.parametrize(
    ("value", "shown"), [(12345.6, "12,346"), (12.34, "12.3"), (1.234, "1.23"), (0.00123, "0.0012")]
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown
    assert shown in table([row("a", 0, value)])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_documentation_holds_what_the_files_say(document: str) -> None:
    path = RESULTS.parent.parent / document
    text = path.read_text(encoding="utf-8")
    assert rendered(text) == text, f"python -m benchmarks.results {document}"


def test_the_latencies_are_the_papers() -> None:
    fitted = Latencies.of_table(RESULTS.parent.parent / TABLE)
    assert fitted.collect_s * 1024 == pytest.approx(178.2)
    assert fitted.judge_s * 1024 == pytest.approx(63.0)
    grpo = 512 * (fitted.reference_s + fitted.actor_s) + fitted.other_s
    rised = grpo + 512 * fitted.teacher_s + 1024 * fitted.judge_s
    assert grpo == pytest.approx(155.5, rel=0.03), "what the table gives for the step of GRPO-64"
    assert rised == pytest.approx(252.9, rel=0.04)
    assert fitted.scaled(0.1, 0.5).actor_s == pytest.approx(fitted.actor_s * 0.2), "half the sequences, a tenth of it"


def test_recorded_episodes_play_again_without_model_and_environment() -> None:
    from rised.environments.pool import EnvironmentPool
    from rised.rollouts.episodes import CollectionRequest, collect_rollouts
    from stages.loop import TRAIN, training_plans
    from stages.policy import open_policy
    from stages.prepare import prepare_tasks
    from stages.setup import load_experiment, load_run, open_pool, panel

    path = RESULTS.parent.parent / "configs/experiments/quickstart.yaml"
    sizes = [f"environments.{name}.validation_tasks=1" for name in ("alfworld", "webshop", "dbbench")]
    sizes += [f"environments.{name}.train_tasks=4" for name in ("alfworld", "webshop", "dbbench")]
    tasks = prepare_tasks(load_experiment(path, sizes))
    config = load_run(path, "grpo_64", 0, [*sizes, "method.candidate_groups=2", "method.selected_groups=2"])
    policy = open_policy(config)
    panels = {"dbbench": panel(tasks, "dbbench", TRAIN)}
    plans = training_plans(config, panels, {"dbbench": 0}, {}, None, 1, 1, "test")  # type: ignore[arg-type]
    recording, waited = Recording(), []
    with open_pool(config) as pool:
        assert isinstance(pool, EnvironmentPool)
        recorded = RecordingPool(pool, recording)
        request = CollectionRequest(plans, policy.rendering, recorded, config.rollout)  # type: ignore[arg-type]
        played = collect_rollouts(RecordingEngine(policy.engine, recording), request)
    engine = ReplayEngine(recording, waited.append)
    again = collect_rollouts(engine, replace(request, pool=ReplayPool(recording)))  # type: ignore[arg-type]
    assert again == played
    assert sum(waited) == engine.tokens_generated == sum(sum(r.policy_mask) for r in played)
