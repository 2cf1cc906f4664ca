"""Shards appear whole or not at all, and every default reader opens the tree of a run."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pandas as pd
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from record_examples import rollout, step_tables, tags, write_run, write_step

from rised.records import files, shards
from rised.records.commit import RunDirectory
from rised.records.compaction import compact
from rised.records.errors import RecordError
from rised.records.layout import judge_folder, parse_step, shard_path, step_name
from rised.records.schemas import NAME_KEY, VERSION_KEY, from_table, to_table
from rised.records.shards import RunReader, read_shard, write_shard
from rised.records.types import Metric

METRICS = [Metric(1, "a", 1.0, "count")]


def test_a_shard_is_read_back_with_the_columns_asked_for(tmp_path: Path) -> None:
    written = write_shard(tmp_path / "deep" / "m.parquet", to_table(METRICS))
    assert written.byte_count == written.path.stat().st_size
    assert written.sha256 == files.sha256_of(written.path)
    assert from_table(read_shard(written.path, "metrics")) == METRICS
    assert read_shard(written.path, columns=["name"]).column_names == ["name"]
    with pytest.raises(RecordError, match="no column 'valu'"):
        read_shard(written.path, columns=["valu"])


@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.98])
def test_a_truncated_shard_is_named_with_its_mend(tmp_path: Path, keep: float) -> None:
    path = write_shard(tmp_path / "m.parquet", to_table(METRICS)).path
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep < 1 else int(keep)])
    with pytest.raises(RecordError, match=r"m\.parquet cannot be read as Parquet.*run the stage that writes it again"):
        read_shard(path)


def test_a_shard_of_another_version_is_refused(tmp_path: Path) -> None:
    table = to_table(METRICS)
    path = tmp_path / "m.parquet"
    pq.write_table(table.replace_schema_metadata({NAME_KEY: b"metrics", VERSION_KEY: b"2"}), path)
    with pytest.raises(RecordError, match=r"m\.parquet has schema 'metrics' version 2, this code reads version 1"):
        read_shard(path, "metrics")


def test_an_absent_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.parquet does not exist"):
        read_shard(tmp_path / "none.parquet")


def test_a_nearly_full_disk_is_found_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "m.parquet"
    write_shard(target, to_table(METRICS))
    before = target.read_bytes()
    monkeypatch.setattr(files, "free_bytes", lambda folder: 1000)
    with pytest.raises(RecordError, match=r"no space left for .*m\.parquet: [\d,]+ bytes needed \(1,000 bytes free"):
        write_shard(target, to_table(METRICS * 100))
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.parquet"]


@pytest.mark.parametrize("call", ["_write_temporary", "sync_folder"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_while_writing_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    original = files._write_temporary

    def fails(*arguments: object) -> None:
        if call == "_write_temporary":
            original(*arguments)  # type: ignore[arg-type]
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, call, fails)
    with pytest.raises(RecordError, match="no space left .* continues after the last committed step"):
        write_shard(tmp_path / "m.parquet", to_table(METRICS))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_full_disk_leaves_the_run_at_its_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        write_step(run, 0)
        calls = 0

        def shrinking(folder: Path) -> int:
            nonlocal calls
            calls += 1
            return 0 if calls > 3 else 1 << 40

        with monkeypatch.context() as patch:
            patch.setattr(files, "free_bytes", shrinking)
            with pytest.raises(RecordError, match="no space left"):
                write_step(run, 1)
        assert run.last_committed() == 0
        assert not list((tmp_path / "run").rglob("step-000001*"))
        write_step(run, 1)
        assert run.last_committed() == 1


def test_default_readers_open_every_folder_of_a_run(tmp_path: Path, cases_dir: Path) -> None:
    """Case 33: the folder of a step is not named like a column."""
    root = tmp_path / "run"
    with RunDirectory(root) as run:
        run.recover()
        for number in (1, 12):
            with run.step(number, expected={"rollouts": 2}) as step:
                step.write("rollouts", to_table([rollout(number, 0), rollout(number, 1)]))
                step.write("tags", to_table(tags([rollout(number, 0)], judge="8")), judge="8")
                step.commit()
    assert sorted(pd.read_parquet(root / "rollouts")["step"]) == [1, 1, 12, 12]
    assert sorted(pq.read_table(root / "rollouts")["step"].to_pylist()) == [1, 1, 12, 12]
    hive = ds.dataset(root / "rollouts", partitioning="hive").to_table()
    assert sorted(hive["step"].to_pylist()) == [1, 1, 12, 12]
    assert pd.read_parquet(root / "tags")["judge"].tolist() == ["8"] * 6
    ours = RunReader(root).scan("rollouts", columns=["step"])
    assert str(ours["step"].type) == "int64" and ours["step"].to_pylist() == [1, 1, 12, 12]

    planned = cases_dir / "33-partition-name-equals-column" / "rollouts"
    with pytest.raises(Exception, match="step"):
        pd.read_parquet(planned)


def test_the_reader_sees_committed_steps_only(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        write_step(run, 0)
        step = run.step(1, expected={"rollouts": 8})
        step.write("rollouts", step_tables(1)["rollouts"])
        reader = RunReader(tmp_path / "run")
        assert reader.steps() == [0]
        assert reader.scan("rollouts", columns=["step"])["step"].unique().to_pylist() == [0]


def test_scans_choose_columns_rows_steps_and_judges(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        for number in range(3):
            with run.step(number, expected={"rollouts": 8}) as step:
                tables = step_tables(number)
                step.write("rollouts", tables["rollouts"])
                for judge in ("rules-v1", "a/b: c"):
                    rolls = from_table(tables["rollouts"])
                    step.write("tags", to_table(tags(rolls, judge)), judge=judge)
                step.commit()
    reader = RunReader(tmp_path / "run")
    assert reader.scan("tags").num_rows == 3 * 2 * 24
    assert reader.scan("tags", judge="a/b: c")["judge"].unique().to_pylist() == ["a/b: c"]
    assert reader.scan("rollouts", ["step", "reward"], pc.field("success"), steps=[2, 1]).to_pydict() == {
        "step": [1] * 4 + [2] * 4,
        "reward": [1.0] * 8,
    }
    assert reader.scan("selections", ["step"]).num_rows == 0
    with pytest.raises(RecordError, match="no column 'rewrd'"):
        reader.scan("rollouts", ["rewrd"])
    with pytest.raises(RecordError, match="unknown kind"):
        reader.scan("rolouts")


def test_a_shard_that_was_cut_or_changed_or_lost_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    path = tmp_path / "run" / shard_path("metrics", 1)
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    with pytest.raises(RecordError, match=r"metrics/step-000001/part-0\.parquet has .* bytes, the manifest says"):
        RunReader(tmp_path / "run").metrics()
    path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    with pytest.raises(RecordError, match="SHA-256 differs"):
        RunReader(tmp_path / "run").scan("metrics")
    path.unlink()
    with pytest.raises(RecordError, match=r"part-0\.parquet is missing"):
        RunReader(tmp_path / "run").metrics()


def test_a_compacted_run_reads_like_the_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    compact(tmp_path / "run", tmp_path / "small")
    full, small = RunReader(tmp_path / "run"), RunReader(tmp_path / "small")
    assert small.steps() == full.steps() == [0, 1, 2, 3] and small.done
    assert small.config_text() == full.config_text() and small.header() == full.header()
    for kind in ("tags", "selections", "metrics", "timings"):
        assert small.scan(kind).equals(full.scan(kind), check_metadata=True), kind
    columns = ["rollout_id", "step", "reward", "stop_reason"]
    assert small.scan("rollouts", columns).equals(full.scan("rollouts", columns))
    assert small.scan("rollouts", columns, steps=[2]).equals(full.scan("rollouts", columns, steps=[2]))
    with pytest.raises(RecordError, match="keeps no token_ids of its rollouts; the full run has them"):
        small.scan("rollouts", ["token_ids"])
    compact(tmp_path / "run", tmp_path / "whole", ["rollouts"], full_rollouts=True)
    assert from_table(RunReader(tmp_path / "whole").scan("rollouts")) == from_table(full.scan("rollouts"))
    assert sorted(pd.read_parquet(tmp_path / "small" / "metrics.parquet")["step"]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_steps_of_a_compacted_run_are_found_where_no_column_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "ROW_GROUP", 5)
    write_run(tmp_path / "run", 3)
    compact(tmp_path / "run", tmp_path / "small")
    compact(tmp_path / "small", tmp_path / "again")
    full = RunReader(tmp_path / "run")
    for copy in ("small", "again"):
        small = RunReader(tmp_path / copy)
        for steps in ([2], [1, 3], [], [7]):
            assert small.scan("tags", steps=steps).equals(full.scan("tags", steps=[s for s in steps if s < 4]))
        wanted = pc.field("status") == "ok"
        assert small.scan("tags", ["rubric_id"], wanted, steps=[2]).equals(
            full.scan("tags", ["rubric_id"], wanted, steps=[2])
        )
    document = json.loads((tmp_path / "small" / "compacted.json").read_text())
    del document["step_rows"]
    (tmp_path / "small" / "compacted.json").write_text(json.dumps(document))
    with pytest.raises(RecordError, match="does not note which rows are whose step: compact the run again"):
        RunReader(tmp_path / "small").scan("tags", steps=[2])


def test_the_last_updates_rollouts_can_stay_whole_in_a_compacted_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    compact(tmp_path / "run", tmp_path / "small", last_texts=True)
    full, small = RunReader(tmp_path / "run"), RunReader(tmp_path / "small")
    last = max(pc.unique(full.scan("rollouts", ["step"])["step"]).to_pylist())
    assert small.scan("rollout_texts").equals(full.scan("rollouts", steps=[last]))
    assert "token_ids" not in small.columns("rollouts")
    compact(tmp_path / "small", tmp_path / "again", last_texts=True)
    assert not RunReader(tmp_path / "again").shards("rollout_texts")


def test_an_unfinished_run_is_not_compacted(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        write_step(run, 0)
    with pytest.raises(RecordError, match="has no DONE"):
        compact(tmp_path / "run", tmp_path / "small")


def test_a_scan_of_many_steps_is_one_read_in_which_each_shard_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = to_table(tags([rollout(0, index) for index in range(9)], rubric_count=25))
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        for number in range(12):
            with run.step(number) as step:
                step.write("tags", table, judge="rules-v1")
                step.commit()
    looked_at, check_file = [], shards.check_file
    monkeypatch.setattr(shards, "check_file", lambda path, schema: looked_at.append(path) or check_file(path, schema))
    assert RunReader(tmp_path / "run").scan("tags").num_rows == 12 * 9 * 25
    assert len(looked_at) == len(set(looked_at)) == 12


def test_names_of_steps_and_judges() -> None:
    assert step_name(12) == "step-000012" and step_name(1234567) == "step-1234567"
    assert parse_step("step-000012") == parse_step("step-000012.json") == 12
    assert parse_step("step-12") is None and parse_step(".tmp-step-000012.json") is None
    assert judge_folder("rules-v1") == "judge-rules-v1"
    assert judge_folder("a/b") != judge_folder("a:b") and "/" not in judge_folder("../a/b")
    with pytest.raises(RecordError, match="needs judge id"):
        shard_path("tags", 1)
    with pytest.raises(RecordError, match="negative"):
        step_name(-1)
