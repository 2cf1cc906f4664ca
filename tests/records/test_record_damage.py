"""One flipped bit anywhere in a stored table: an error that names the file, or the same values; never other values."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from record_examples import rollout, write_run

from rised.records.checksum import check_checksum
from rised.records.compaction import compact
from rised.records.dataset import write_dataset
from rised.records.errors import RecordError
from rised.records.layout import shard_path
from rised.records.schemas import NAME_KEY, VERSION_KEY, from_table, schema_of, to_table
from rised.records.shards import RunReader, read_shard, write_shard, write_stream
from rised.records.tag_counts import count_tags

FLIPS = 40


def outcomes(path: Path, read: Callable[[], pa.Table], seed: int) -> list[str]:
    """For ``FLIPS`` flipped bits of a file: ``refused``, ``same`` or ``other values``. Restores the file."""
    rng, data, wanted, found = random.Random(seed), path.read_bytes(), read(), []
    for _ in range(FLIPS):
        place = rng.randrange(8 * len(data))
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found.append("same" if read().equals(wanted) else "other values")
        except RecordError as error:
            assert str(path) in str(error) and "Restore" in str(error).replace("restore", "Restore")
            found.append("refused")
    path.write_bytes(data)
    return found


def test_a_flipped_bit_in_a_shipped_shard_is_refused(repository: Path, tmp_path: Path) -> None:
    """Shards from before the checksum are held against the hash in their manifest."""
    source = next((repository / "data/sample_results/laptop_grid").glob("*/seed-0"))
    run = Path(shutil.copytree(source, tmp_path / "run"))
    assert outcomes(run / "validation.parquet", lambda: RunReader(run).scan("validation"), 1) == ["refused"] * FLIPS


def test_a_flipped_bit_in_a_runs_shard_is_refused_by_every_reader_of_the_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    for kind in ("rollouts", "tags"):
        path = tmp_path / "run" / shard_path(kind, 1, "rules-v1" if kind == "tags" else None)
        data = path.read_bytes()
        path.write_bytes(data[:-100] + bytes([data[-100] ^ 4]) + data[-99:])
        for read in (
            lambda kind=kind: RunReader(tmp_path / "run").scan(kind, ["rollout_id"], steps=[1]),
            lambda: count_tags(RunReader(tmp_path / "run")),
            lambda: compact(tmp_path / "run", tmp_path / "small"),
            lambda: write_dataset({"rised/seed-0": tmp_path / "run"}, tmp_path / "data", "grid", lambda _: ""),
        ):
            with pytest.raises(RecordError, match=rf"{kind}.*part-0\.parquet does not have the content"):
                read()
        path.write_bytes(data)


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    reader, path = RunReader(tmp_path / "run"), tmp_path / "run" / shard_path("metrics", 1)
    assert reader.metrics().equals(reader.metrics())
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    with pytest.raises(RecordError, match="SHA-256 differs"):
        reader.metrics()


def test_a_flipped_bit_in_a_file_without_a_manifest_is_refused(tmp_path: Path) -> None:
    """Tasks and demonstrations. A bit of the mark itself hides the checksum and changes no value."""
    path = write_shard(tmp_path / "demonstrations.parquet", to_table([rollout(1, i) for i in range(4)])).path
    found = outcomes(path, lambda: read_shard(path, "rollouts"), 2)
    assert "other values" not in found and found.count("refused") >= FLIPS - 2


def test_written_and_streamed_shards_have_a_checksum_and_other_readers_do_not_mind(tmp_path: Path) -> None:
    table = to_table([rollout(1, i) for i in range(4)])
    write_shard(tmp_path / "a.parquet", table)
    write_stream(tmp_path / "b.parquet", "rollouts", iter([table]), 1 << 20)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert check_checksum(tmp_path / "b.parquet") and pq.read_table(tmp_path / "b.parquet").equals(table)
    pq.write_table(table, tmp_path / "old.parquet")
    assert not check_checksum(tmp_path / "old.parquet") and read_shard(tmp_path / "old.parquet").equals(table)


def task(number: int) -> dict[str, object]:
    payload = {"goal": f"put {number} on the shelf"}
    return dict(environment="e", split="train", task_id=f"t{number}", seed=1, payload=payload, content_hash="h")


@pytest.mark.parametrize(("column", "value"), [("payload", '{"goal":"x"}'), ("seed", 2), ("content_hash", "i")])
def test_a_task_that_was_edited_is_named(column: str, value: object) -> None:
    rows = to_table([task(0), task(1)], "tasks").to_pylist()
    rows[1][column] = value
    edited = pa.Table.from_pylist(rows, schema_of("tasks"))
    with pytest.raises(RecordError, match=r"tasks\.parquet, row 1 \(t1\) is damaged: it was changed .*run the stage"):
        from_table(edited, "tasks.parquet")
    assert from_table(edited.slice(0, 1)) == [task(0)], "rows may be left out or ordered anew"


def test_tasks_of_the_version_without_a_hash_are_still_read(tmp_path: Path) -> None:
    table = to_table([task(0)], "tasks").drop_columns(["row_hash"])
    table = table.replace_schema_metadata({NAME_KEY: b"tasks", VERSION_KEY: b"1"})
    pq.write_table(table, tmp_path / "tasks.parquet")
    assert from_table(read_shard(tmp_path / "tasks.parquet", "tasks")) == [task(0)]
    assert json.loads(table["payload"][0].as_py()) == task(0)["payload"]
