"""Shards from elsewhere: numbers that are none are refused on reading, and intact files are not blamed for a filter."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from record_examples import write_step

from rised.records.commit import RunDirectory
from rised.records.compaction import compact
from rised.records.errors import RecordError
from rised.records.files import sha256_of
from rised.records.shards import RunReader, read_shard


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with RunDirectory(path) as directory:
        directory.write_config("updates: 2\n")
        directory.write_header({"panel": "abc"})
        directory.recover()
        for step in (1, 2):
            write_step(directory, step)
        directory.finish(2)
    return path


def spoil(run: Path, value: float) -> Path:
    """Two rewards of step 2 become ``value``; the manifest goes with it."""
    (path,) = (run / "rollouts").glob("*000002/*.parquet")
    table = pq.read_table(path)
    rewards = table["reward"].to_pylist()
    rewards[3] = rewards[5] = value
    place = table.schema.get_field_index("reward")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(rewards, pa.float64())), path)
    manifest = next((run / "manifests").glob("*000002.json"))
    document = json.loads(manifest.read_text())
    for shard in document["shards"]:
        if shard["path"] == str(path.relative_to(run)):
            shard |= {"byte_count": path.stat().st_size, "sha256": sha256_of(path)}
    manifest.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_with_file_and_rollout_and_count(run: Path, value: float) -> None:
    path = spoil(run, value)
    expected = rf"{path}: 2 of 8 rows have a reward that is no finite number, the first rollout_id 2/3 step 2"
    with pytest.raises(RecordError, match=expected):
        RunReader(run).scan("rollouts", ["step", "reward"])
    with pytest.raises(RecordError, match=expected):
        RunReader(run).scan("rollouts", ["reward"], pc.field("step") == 2)
    with pytest.raises(RecordError, match=expected):
        read_shard(path)
    assert RunReader(run).scan("rollouts", ["step", "reward"], steps=[1]).num_rows == 8
    assert RunReader(run).scan("rollouts", ["success"]).num_rows == 16, "what was not read is not judged"


def test_undefined_numbers_are_null_and_pass(run: Path) -> None:
    assert None in RunReader(run).scan("metrics", ["value"])["value"].to_pylist()


@pytest.mark.parametrize("compacted", [False, True], ids=["full", "compacted"])
def test_an_intact_shard_is_not_blamed_for_a_filter(run: Path, tmp_path: Path, compacted: bool) -> None:
    if compacted:
        compact(run, tmp_path / "small")
    reader = RunReader(tmp_path / "small" if compacted else run)
    typed = pc.field("rollout_id").isin(pa.array([], pa.string()))
    for kind in ("rollouts", "tags"):
        assert reader.scan(kind, ["rollout_id"], typed).num_rows == 0
        assert reader.scan(kind, ["rollout_id"], typed, steps=[1]).num_rows == 0
        assert reader.scan(kind, ["rollout_id"], steps=[]).num_rows == 0
        for wrong in (pc.field("rollout_id").isin([]), pc.field("rollout_id") > 3, pc.field("no_such_column") == 1):
            for steps in (None, [1]):
                with pytest.raises(RecordError, match=f"the filter .* does not fit the columns of {kind}") as caught:
                    reader.scan(kind, ["rollout_id"], wrong, steps=steps)
                assert "truncated" not in str(caught.value)
