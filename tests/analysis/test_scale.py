"""At the paper's size the analysis reads counts and pruned columns: what it opens, not how fast this machine is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.frames import Frames
from analysis.registry import build_figures, build_tables
from analysis.report import health
from analysis.report.rollouts import browse
from analysis.runs import find_experiment
from analysis.synthetic import JUDGE
from analysis.synthetic_scale import write_experiment
from rised.records import shards
from rised.records.compaction import compact
from rised.records.errors import RecordError
from rised.records.shards import RunReader
from rised.records.tag_counts import count_tags, read_tag_counts

STEPS, GROUPS = 6, 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, a few groups of the paper's kind of step: 48 rollouts with 59 tags each."""
    root = tmp_path_factory.mktemp("scale") / "grid"
    return write_experiment(root, ("grpo_64", "rised"), (0,), STEPS, every=3, groups=GROUPS)


@pytest.fixture(scope="module")
def compacted(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compacted") / "grid"
    for method in ("grpo_64", "rised"):
        compact(runs / method / "seed-0", root / method / "seed-0")
    return root


def counted_by_hand(run: Path) -> Counter[tuple[int, str, str, str]]:
    reader = RunReader(run)
    where = {
        row["rollout_id"]: (row["step"], row["environment"])
        for row in reader.scan("rollouts", ["rollout_id", "step", "environment"]).to_pylist()
    }
    return Counter(
        (*where[tag["rollout_id"]], tag["rubric_id"], tag["state"] if tag["status"] == "ok" else "error")
        for tag in reader.scan("tags").to_pylist()
    )


def as_counter(frame: pd.DataFrame) -> Counter[tuple[int, str, str, str]]:
    found: Counter[tuple[int, str, str, str]] = Counter()
    for row in frame.to_dict("records"):
        for outcome in ("demonstrates", "violates", "absent", "error"):
            if row[outcome]:
                found[row["step"], row["environment"], row["rubric_id"], outcome] = row[outcome]
    return found


def test_the_generator_writes_steps_of_the_papers_shape(runs: Path) -> None:
    reader = RunReader(runs / "rised" / "seed-0")
    assert reader.header()["synthetic"] is True
    assert reader.scan("rollouts", ["step"], steps=[1]).num_rows == GROUPS * 8
    assert reader.scan("tags", ["status"], steps=[1]).num_rows == GROUPS * 8 * 59
    assert reader.scan("selections", ["selected"], steps=[1])["selected"].to_pylist().count(True) == GROUPS // 2
    assert "SYNTHETIC" in reader.scan("rollouts", steps=[1])["turns"][0].as_py()[0]["observation"]


def test_counts_from_codes_equal_a_count_by_hand_before_and_after_compaction(runs: Path, compacted: Path) -> None:
    by_hand = counted_by_hand(runs / "rised" / "seed-0")
    assert sum(by_hand.values()) == STEPS * GROUPS * 8 * 59
    full, small = RunReader(runs / "rised" / "seed-0"), RunReader(compacted / "rised" / "seed-0")
    stored, from_tags = read_tag_counts(small), count_tags(small)
    assert as_counter(count_tags(full).to_pandas()) == by_hand
    assert stored.equals(from_tags) and stored.equals(count_tags(full))
    assert read_tag_counts(full, "another judge").num_rows == 0
    experiment = find_experiment(runs)
    sums = Frames(experiment).rubric_counts(experiment.of("rised")[0], JUDGE)
    assert sums[["demonstrates", "violates", "absent", "error"]].to_numpy().sum() == sum(by_hand.values())


def test_tables_and_figures_of_compacted_runs_open_no_file_of_tags(compacted: Path, tmp_path: Path) -> None:
    before = Frames(find_experiment(compacted))
    expected = {name: figure.frame for name, figure in build_figures(before).items()}
    for tags in compacted.rglob("tags.parquet"):
        tags.rename(tmp_path / f"{tags.parent.parent.name}.parquet")
    try:
        frames = Frames(find_experiment(compacted))
        build_tables(frames)
        for name, figure in build_figures(frames).items():
            assert figure.frame.equals(expected[name])
        assert "errors" in health.health_table(frames).columns
    finally:
        for method in ("grpo_64", "rised"):
            (tmp_path / f"{method}.parquet").rename(compacted / method / "seed-0" / "tags.parquet")


def test_no_table_or_figure_reads_texts_or_tokens(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    scan = RunReader.scan

    def noted(self: RunReader, kind: str, columns: list[str] | None = None, *rest: object, **named: object) -> object:
        if kind in ("rollouts", "validation"):
            assert columns is not None, "all columns of rollouts were asked for"
            read.update(columns)
        return scan(self, kind, columns, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(RunReader, "scan", noted)
    frames = Frames(find_experiment(runs))
    build_tables(frames)
    build_figures(frames)
    health.health_table(frames)
    health.stop_bars(frames)
    assert read and not read & {"turns", "messages", "token_ids", "policy_mask", "logprobs", "system_prompt"}


def test_the_browser_opens_no_more_steps_when_a_run_has_more(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: set[tuple[Path, str, int]] = set()
    scan = RunReader.scan

    def noted(self: RunReader, kind: str, *rest: object, **named: object) -> object:
        steps = named["steps"]
        assert isinstance(steps, list), f"{kind}: all steps were asked for"
        opened.update((self.path, kind, step) for step in steps)
        return scan(self, kind, *rest, **named)  # type: ignore[arg-type]

    frames = Frames(find_experiment(runs))
    monkeypatch.setattr(RunReader, "scan", noted)
    assert browse(frames).rollouts
    assert {step for _, kind, step in opened if kind == "rollouts"} == {1, 4, 6}


def test_compaction_writes_whole_row_groups_in_the_order_of_steps(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "ROW_GROUP", 1000)
    run = RunReader(runs / "rised" / "seed-0")
    compact(run.path, tmp_path / "small")
    file = pq.ParquetFile(tmp_path / "small" / "tags.parquet")
    rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert set(rows[:-1]) == {1000} and sum(rows) == STEPS * GROUPS * 8 * 59
    assert RunReader(tmp_path / "small").scan("tags").equals(run.scan("tags"))


def test_memory_of_compaction_does_not_grow_with_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    write = pq.ParquetWriter.write_table

    def sampled(self: pq.ParquetWriter, *table: pa.Table, **options: int) -> None:
        held.append(pa.total_allocated_bytes())
        write(self, *table, **options)

    monkeypatch.setattr(shards, "ROW_GROUP", 500)
    monkeypatch.setattr(pq.ParquetWriter, "write_table", sampled)
    peaks = []
    for steps in (4, 16):
        run = (
            write_experiment(tmp_path / str(steps), ("rised",), (0,), steps, every=1000, groups=4) / "rised" / "seed-0"
        )
        held.clear()
        compact(run, tmp_path / f"small-{steps}", kinds=["tags"])
        peaks.append(max(held))
    assert peaks[1] < 1.5 * peaks[0]


def test_tags_of_rollouts_that_the_run_does_not_hold_are_refused(runs: Path, tmp_path: Path) -> None:
    compact(runs / "rised" / "seed-0", tmp_path / "small", kinds=["tags", "metrics"])
    with pytest.raises(RecordError, match="which the run does not hold.*Compact the run with its rollouts"):
        read_tag_counts(RunReader(tmp_path / "small"))
