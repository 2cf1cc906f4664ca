"""An experiment's finished runs as one folder that can be uploaded: shards, their list, a card, checksums.

    <dataset>/README.md  dataset.json  SHA256SUMS  <experiment>/<method>/seed-<s>/…

The folder is written beside its place and renamed, so that it is there whole or not at all. ``SHA256SUMS`` names every
other file (``sha256sum -c SHA256SUMS`` checks it too); a check names the first damaged file and what to do. What the
card says is the caller's.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq

from rised.records.compaction import compact
from rised.records.errors import RecordError
from rised.records.files import TEMPORARY_PREFIX, make_folder, sha256_of, sync_folder, write_bytes
from rised.records.layout import COMPACTED, CONFIG, DONE, HEADER
from rised.records.manifests import ShardEntry, json_bytes, read_json, verify
from rised.records.shards import RunReader, check_file

FORMAT = "rised.dataset"
VERSION = 1
DATASET = "dataset.json"
CARD = "README.md"
SUMS = "SHA256SUMS"
OLD_PREFIX = ".old-"
MEND = "Download this file again, or publish the runs again with the same command."
_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_OF_THE_HUB = {".gitattributes"}


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One run in a dataset: its folder relative to the dataset and the shards in it."""

    path: str
    header: Mapping[str, Any]
    config_text: str
    shards: Sequence[ShardEntry]


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a dataset holds. ``texts``: whether rollouts come with what was said."""

    experiment: str
    texts: bool
    runs: Sequence[PublishedRun]

    @property
    def synthetic(self) -> bool:
        """Whether any run says of itself that it is synthetic."""
        return any(run.header.get("synthetic") is True for run in self.runs)


def write_dataset(
    runs: Mapping[str, Path], out: Path, experiment: str, card: Callable[[Dataset], str], texts: bool = False
) -> Dataset:
    """Write ``out`` from finished runs, which ``runs`` names by their path in the experiment (``rised/seed-0``).

    Runs that are compacted already are copied after a check of their hashes. Replaces what is there. Raises
    :class:`RecordError` where a run is unfinished or damaged; then ``out`` is as before.
    """
    if not runs:
        raise RecordError("no finished run to publish: finish a run, or give another folder of runs")
    aside, old = (out.parent / f"{prefix}{out.name}" for prefix in (TEMPORARY_PREFIX, OLD_PREFIX))
    make_folder(out.parent)
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        written = [_publish(run, aside, f"{experiment}/{name}", texts) for name, run in sorted(runs.items())]
        dataset = Dataset(experiment, texts, written)
        write_bytes(aside / DATASET, _document(dataset))
        write_bytes(aside / CARD, card(dataset).encode())
        names = [name for name in _files(aside) if name != SUMS]
        lines = [f"{sha256_of(aside / name)}  {name}\n" for name in names]
        write_bytes(aside / SUMS, "".join(lines).encode())
        if out.exists():
            os.replace(out, old)
        os.replace(aside, out)
        sync_folder(out.parent)
    except OSError as error:
        raise RecordError(
            f"cannot write {out}: {error.strerror or error}. Check the path and the free space."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return dataset


def _publish(run: Path, root: Path, path: str, texts: bool) -> PublishedRun:
    reader, target = RunReader(run), root / path
    if not reader.done:
        raise RecordError(f"{run} has no {DONE}: only finished runs are published")
    stored_texts = "turns" in reader.columns("rollouts")
    if texts and not stored_texts:
        raise RecordError(f"{run} keeps no texts to publish: take the full run, or publish without them")
    if not reader.compacted or stored_texts != texts or reader.shards("rollout_texts"):
        compact(run, target, full_rollouts=texts)
    else:
        for shard in (shard for kind in reader.kinds() for shard in reader.shards(kind)):
            verify(run, shard, COMPACTED)
            make_folder(target)
            shutil.copyfile(run / shard.path, target / shard.path)
        for name in (CONFIG, HEADER, DONE, COMPACTED):
            write_bytes(target / name, (run / name).read_bytes())
    published = RunReader(target)
    shards = [shard for kind in published.kinds() for shard in published.shards(kind)]
    return PublishedRun(path, published.header(), published.config_text(), shards)


def _document(dataset: Dataset) -> bytes:
    runs = [{"path": run.path, "shards": [asdict(shard) for shard in run.shards]} for run in dataset.runs]
    return json_bytes(
        {
            "format": FORMAT,
            "version": VERSION,
            "experiment": dataset.experiment,
            "synthetic": dataset.synthetic,
            "texts": dataset.texts,
            "runs": runs,
        },
        DATASET,
    )


def _files(root: Path) -> Iterator[str]:
    """Paths of all files below a dataset, without what a hub or a download tool keeps beside them."""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = relative.parts[0].startswith(".") and len(relative.parts) > 1
        if path.is_file() and not hidden and relative.name not in _OF_THE_HUB:
            yield relative.as_posix()


def verify_dataset(root: Path) -> int:
    """Check every file of a dataset: that it is listed and whole, and that shards hold what the list says.

    Returns the number of files. Raises :class:`RecordError` for the first that is wrong, in the order of the list.
    """
    sums = _read_sums(root)
    for name, digest in sums.items():
        path = root / name
        if not path.is_file():
            raise RecordError(f"{path} is missing, but {SUMS} lists it. {MEND}")
        if sha256_of(path) != digest:
            raise RecordError(f"{path} is damaged: it does not have the content that {SUMS} lists. {MEND}")
    unlisted = next((name for name in _files(root) if name not in sums and name != SUMS), None)
    if unlisted is not None:
        raise RecordError(
            f"{root / unlisted} is not listed in {SUMS}. Move it elsewhere: it is no part of the dataset."
        )
    if {DATASET, CARD} - set(sums):
        raise RecordError(f"{root / SUMS} lists no {DATASET} or no {CARD}: it is not the list of a dataset. {MEND}")
    for run in read_json(root / DATASET, FORMAT, VERSION)["runs"]:
        for entry in run["shards"]:
            _check_shard(root, f"{run['path']}/{entry['path']}", entry, sums)
    return len(sums)


def _read_sums(root: Path) -> dict[str, str]:
    path = root / SUMS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise RecordError(
            f"{root} is no whole dataset: it has no {SUMS}. Check the path; if it is right, download {SUMS} again, "
            "or publish the runs again."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read: {error}. {MEND}") from error
    sums = {}
    for number, line in enumerate(lines, 1):
        match = _SUM.fullmatch(line)
        name = PurePosixPath(match[2]) if match else None
        if match is None or name is None or name.is_absolute() or ".." in name.parts:
            raise RecordError(f"{path}, line {number} is no checksum of a file of the dataset: {line[:100]!r}. {MEND}")
        sums[match[2]] = match[1]
    if not sums:
        raise RecordError(f"{path} is empty. {MEND}")
    return sums


def _check_shard(root: Path, name: str, entry: Mapping[str, Any], sums: Mapping[str, str]) -> None:
    if sums.get(name) != entry["sha256"]:
        raise RecordError(f"{root / name}: {DATASET} and {SUMS} do not agree on it. {MEND}")
    check_file(root / name, None)
    rows = pq.read_metadata(root / name).num_rows
    if rows != entry["row_count"]:
        raise RecordError(f"{root / name} holds {rows:,} rows, {DATASET} says {entry['row_count']:,}. {MEND}")
