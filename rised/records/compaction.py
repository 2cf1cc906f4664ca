"""A finished run as one file per kind: small enough to publish, read by the same ``RunReader``.

Rows keep their order (by step). Rollouts keep only the columns of the schema ``episodes`` unless asked otherwise:
token ids, masks and texts are most of the bytes and no table or figure reads them. A judge model's raw replies are
left out with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from rised.records.errors import RecordError
from rised.records.files import write_bytes
from rised.records.layout import COMPACTED, CONFIG, DONE, HEADER, KIND_SCHEMAS
from rised.records.manifests import ShardEntry, json_bytes
from rised.records.schemas import schema_of
from rised.records.shards import COMPACTED_FORMAT, COMPACTED_VERSION, RunReader, write_shard


def compact(
    run_dir: Path | str, out_dir: Path | str, kinds: Sequence[str] | None = None, full_rollouts: bool = False
) -> list[ShardEntry]:
    """Merge a finished run's shards into ``out_dir/<kind>.parquet`` and a manifest with their hashes.

    ``kinds``: which ones (None: all that the run has; judges' raw replies only with ``full_rollouts``). Hashes of the
    source are checked on the way.
    """
    reader, target = RunReader(run_dir), Path(out_dir)
    if not reader.done:
        raise RecordError(f"{run_dir} has no {DONE}: only a finished run is compacted. Start it again to finish it.")
    if target.resolve() == reader.path.resolve():
        raise RecordError(f"{out_dir} is the run itself: compact into another folder")
    entries = []
    published = [kind for kind in KIND_SCHEMAS if full_rollouts or kind != "judge_replies"]
    for kind in published if kinds is None else kinds:
        if not reader.shards(kind):
            if kinds is not None:
                raise RecordError(f"{run_dir} has no {kind} to compact")
            continue
        table = reader.scan(kind, columns=_columns(kind, full_rollouts), check_hashes=True)
        name = _schema_name(kind, full_rollouts)
        written = write_shard(target / f"{kind}.parquet", pa.Table.from_arrays(table.columns, schema=schema_of(name)))
        entries.append(ShardEntry(written.path.name, written.byte_count, written.sha256, kind, table.num_rows))
    for name in (CONFIG, HEADER, DONE):
        if (reader.path / name).exists():
            write_bytes(target / name, (reader.path / name).read_bytes())
    document = {
        "format": COMPACTED_FORMAT,
        "version": COMPACTED_VERSION,
        "steps": reader.steps(),
        "shards": [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.path)],
    }
    write_bytes(target / COMPACTED, json_bytes(document, COMPACTED))
    return entries


def _schema_name(kind: str, full_rollouts: bool) -> str:
    schema = KIND_SCHEMAS[kind]
    return "episodes" if schema == "rollouts" and not full_rollouts else schema


def _columns(kind: str, full_rollouts: bool) -> list[str]:
    return list(schema_of(_schema_name(kind, full_rollouts)).names)
