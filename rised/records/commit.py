"""Writing a run: steps that become visible by one rename, recovery after a kill, one writer at a time.

A step's shards and state files are written first; then its manifest, with their hashes, is renamed into place. Until
that rename the step does not exist, and ``recover`` removes what it left. Reading is in ``shards``.

    with RunDirectory(path) as run:
        run.recover()
        with run.step(12, expected={"rollouts": 96}) as step:
            step.write("rollouts", table)
            step.write("tags", tags, judge="rules-v1")
            step.write_state("optimiser.pt", data)
            step.commit({"cursor": 7})
        run.finish(last_step=60)

``Step.commit_later`` leaves the last files and the commit to a thread; ``RunDirectory.settle`` waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rised.records.cleaning import leftovers, numbered, remove
from rised.records.deferred import Background
from rised.records.errors import RecordError
from rised.records.files import TEMPORARY_PREFIX, link_file, make_folder, sha256_of, sync_folder, write_bytes
from rised.records.layout import (
    CHECKPOINTS,
    CONFIG,
    COUNTED_KINDS,
    DONE,
    HEADER,
    KIND_SCHEMAS,
    LOCK,
    STATE,
    shard_path,
    step_name,
)
from rised.records.lock import WriterLock
from rised.records.manifests import (
    FileEntry,
    Manifest,
    ShardEntry,
    committed_steps,
    json_bytes,
    manifest_path,
    read_json,
    read_manifest,
    verify,
)
from rised.records.schemas import check_schema
from rised.records.shards import write_shard


@dataclass(frozen=True, slots=True)
class Recovery:
    """What ``recover`` found: the last committed step (None: none) and the paths it removed, relative to the run."""

    last_committed: int | None
    removed: tuple[str, ...]


class RunDirectory:
    """The one writer of a run directory.

    ``keep_states``: for how many of the latest committed steps the files under ``state/`` are kept (at least 1).
    ``keep_checkpoints``: likewise for the steps that have files under ``checkpoints/``; None: all of them.
    Everything it removes lies in the step folders of :mod:`rised.records.layout`, below this directory.
    """

    def __init__(self, path: Path | str, keep_states: int = 1, keep_checkpoints: int | None = None) -> None:
        if keep_states < 1:
            raise RecordError(f"keep_states is {keep_states}: the last committed step's state is always kept")
        if keep_checkpoints is not None and keep_checkpoints < 1:
            raise RecordError(f"keep_checkpoints is {keep_checkpoints}: the last checkpoint is always kept")
        self.path = Path(path)
        self.keep_states, self.keep_checkpoints = keep_states, keep_checkpoints
        self._recovered = False
        self._open_step: Step | None = None
        self._deferred = Background()
        self._deferred_number = -1
        self._lock = WriterLock(self.path / LOCK)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for a step that a thread commits, then let another writer in."""
        self._deferred.close()
        self._lock.release()

    def settle(self) -> None:
        """Wait for the step that a thread commits, if there is one.

        Raises what ended it; nothing of that step is left then.
        """
        try:
            self._deferred.result()
        except BaseException:
            if self._open_step is None:
                self._remove_uncommitted()
            raise

    def check(self) -> None:
        """Raise what has ended the step that a thread commits, if anything has; do not wait for it."""
        if self._deferred.failed:
            self.settle()

    def write_config(self, text: str) -> None:
        """Save the resolved configuration (``config.yaml``)."""
        write_bytes(self.path / CONFIG, text.encode())

    def write_header(self, header: Mapping[str, Any]) -> None:
        """Save ``manifest.json``: versions and hashes of all that the result depends on.

        A resumed run must bring the same header; the first differing entry is named otherwise.
        """
        document = {"format": "rised.run", "version": 1, **header}
        data = json_bytes(document, "the run's header")
        target = self.path / HEADER
        if target.exists():
            if target.read_bytes() == data:
                return
            found = read_json(target, "rised.run", 1)
            key = next(k for k in sorted({*found, *document}) if found.get(k) != document.get(k))
            raise RecordError(
                f"{target}: {key!r} was {found.get(key)!r} when the run began and is {document.get(key)!r} now. "
                "Go on with what it began with, or start a new run in another folder."
            )
        write_bytes(target, data)

    def last_committed(self) -> int | None:
        """The latest visible step, None before the first."""
        steps = self.committed_steps()
        return steps[-1] if steps else None

    def committed_steps(self) -> list[int]:
        """Visible steps in ascending order."""
        return committed_steps(self.path)

    def manifest(self, step: int) -> Manifest:
        """Manifest of a committed step."""
        return read_manifest(manifest_path(self.path, step))

    def state_file(self, name: str) -> Path:
        """Path of a state file of the last committed step, for resuming."""
        last = self.last_committed()
        if last is None:
            raise RecordError(f"{self.path} has no committed step, so there is no state to resume from")
        return self.path / self.state_entry(last, name).path

    def state_entry(self, step: int, name: str) -> FileEntry:
        """What the manifest of a committed step says of a state file that is still there."""
        relative = f"{STATE}/{step_name(step)}/{name}"
        found = next((entry for entry in self.manifest(step).state if entry.path == relative), None)
        if found is None:
            raise RecordError(f"{manifest_path(self.path, step)} names no state file {name!r}")
        return found

    def recover(self) -> Recovery:
        """Remove what an interrupted step left and verify the last committed step's files by their hashes.

        Call it once after opening, before anything of a new step is written. It removes temporaries, step folders
        after the last committed step, and state that newer commits made useless; nothing that the last manifest names.
        """
        last = self.last_committed()
        if last is not None:
            manifest = self.manifest(last)
            for entry in manifest.files:
                verify(self.path, entry, str(manifest_path(self.path, last)))
        removed = [remove(self.path, path) for path in leftovers(self.path, last)]
        removed += self._prune()
        self._recovered = True
        return Recovery(last, tuple(removed))

    def step(self, number: int, expected: Mapping[str, int] | None = None) -> Step:
        """Begin a step. ``expected``: kind -> number of rows that the step's plan demands."""
        if not self._recovered:
            raise RecordError(f"call recover() on {self.path} before the first step")
        if self._open_step is not None:
            raise RecordError(f"step {self._open_step.number} of {self.path} is still open")
        if (self.path / DONE).exists():
            raise RecordError(f"{self.path} is finished. To extend the run, remove {self.path / DONE} first.")
        last = max(self.committed_steps()[-1:] + [self._deferred_number])
        if number <= last:
            raise RecordError(f"step {number} cannot be written again: {self.path} is committed up to step {last}")
        self._open_step = Step(self, number, expected or {})
        return self._open_step

    def finish(self, last_step: int, planned: Sequence[int] | None = None) -> None:
        """Write DONE, after checking that the ``planned`` steps are there and no others.

        None: every step from the first committed one to ``last_step``.
        """
        self.settle()
        steps = self.committed_steps()
        if not steps or steps != (list(range(steps[0], last_step + 1)) if planned is None else list(planned)):
            have = f"{steps[0]} to {steps[-1]}, {len(steps)} in all" if steps else "none"
            raise RecordError(f"{self.path} is not finished: it should end at step {last_step}, committed are {have}")
        self._prune()
        data = json_bytes({"first_step": steps[0], "last_step": last_step}, DONE)
        if not (self.path / DONE).exists() or (self.path / DONE).read_bytes() != data:
            write_bytes(self.path / DONE, data)

    def _remove_uncommitted(self) -> None:
        self._deferred.wait()  # what it writes is no leftover as long as it may still be committed
        for path in list(leftovers(self.path, self.last_committed())):
            remove(self.path, path)

    def _prune(self) -> list[str]:
        """Remove state and checkpoints of committed steps that newer ones made useless; never a shard."""
        steps = self.committed_steps()
        last = steps[-1] if steps else -1
        old = [
            path
            for number, path in numbered(self.path, STATE)
            if number <= last and number not in steps[-self.keep_states :]
        ]
        if self.keep_checkpoints is not None:
            committed = [path for number, path in numbered(self.path, CHECKPOINTS) if number <= last]
            old += committed[: -self.keep_checkpoints]
        return [remove(self.path, path) for path in old]


class Step:
    """One step in the making; leave the ``with`` block only after :meth:`commit`.

    An exception inside the block removes the step's files, as ``recover`` would.
    """

    def __init__(self, run: RunDirectory, number: int, expected: Mapping[str, int]) -> None:
        step_name(number)
        self.number = number
        self._run = run
        self._expected: dict[str, int] = {}
        self._shards: list[ShardEntry] = []
        self._state: list[FileEntry] = []
        self._rollout_ids: dict[str, list[pa.ChunkedArray]] = {}
        self._committed = self._handed_over = False
        for kind, rows in expected.items():
            self.expect(kind, rows)

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._run._open_step = None
        if self._committed or self._handed_over:
            return
        self._run._remove_uncommitted()
        if error is None:
            raise RecordError(f"step {self.number} of {self._run.path} was left without a commit and removed")

    def expect(self, kind: str, rows: int) -> None:
        """State how many rows of a kind the step must hold at its commit."""
        if kind not in KIND_SCHEMAS:
            raise RecordError(f"unknown kind of record {kind!r}: one of {', '.join(KIND_SCHEMAS)}")
        self._expected[kind] = rows

    def write(self, kind: str, table: pa.Table, judge: str | None = None) -> Path:
        """Write one shard of a kind (tags: of one judge); a second call with the same kind adds a part."""
        part = sum(shard.kind == kind and shard.judge == judge for shard in self._shards)
        relative = shard_path(kind, self.number, judge, part)
        check_schema(table.schema, KIND_SCHEMAS[kind], f"the table for {relative}")
        self._check_rows(kind, table, relative, judge)
        written = write_shard(self._run.path / relative, table)
        self._shards.append(ShardEntry(relative, written.byte_count, written.sha256, kind, table.num_rows, judge))
        return written.path

    def _check_rows(self, kind: str, table: pa.Table, relative: str, judge: str | None) -> None:
        if "step" in table.column_names and not pc.all(pc.equal(table["step"], self.number)).as_py() and table.num_rows:
            raise RecordError(f"the table for {relative} has rows of other steps than {self.number}")
        if judge is not None and table.num_rows and pc.unique(table["judge"]).to_pylist() != [judge]:
            raise RecordError(f"the table for {relative} has tags of other judges than {judge!r}")
        if kind in COUNTED_KINDS:
            self._rollout_ids.setdefault(kind, []).append(table["rollout_id"])

    def folder(self, checkpoint: bool = False) -> Path:
        """The step's folder for resume state, or for weights that stay; created if needed.

        Files put there by others (a learner's own saver) are made part of the step by :meth:`add_files`.
        """
        folder = self._run.path / (CHECKPOINTS if checkpoint else STATE) / step_name(self.number)
        make_folder(folder)
        return folder

    def write_state(self, name: str, data: bytes, checkpoint: bool = False) -> Path:
        """Write a state file (or, with ``checkpoint``, one of weights that stay) and make it part of the step."""
        written = write_bytes(self.folder(checkpoint) / name, data)
        relative = written.path.relative_to(self._run.path).as_posix()
        self._state.append(FileEntry(relative, written.byte_count, written.sha256))
        return written.path

    def link_state(self, name: str, source: FileEntry) -> Path:
        """Make a state file of an earlier step a state file of this one too, under a name of this step's."""
        path = self.folder() / name
        link_file(self._run.path / source.path, path, source.byte_count)
        relative = path.relative_to(self._run.path).as_posix()
        self._state.append(FileEntry(relative, source.byte_count, source.sha256))
        return path

    def add_file(self, relative: str) -> None:
        """Make a file that is already on disk (path relative to the run) part of the step; it is synced and hashed."""
        path = self._run.path / relative
        inside = relative.split("/")[:2] in ([STATE, step_name(self.number)], [CHECKPOINTS, step_name(self.number)])
        if not inside or ".." in relative.split("/"):
            raise RecordError(f"{relative} does not lie in the state or checkpoint folder of step {self.number}")
        try:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
            sync_folder(path.parent)
            self._state.append(FileEntry(relative, path.stat().st_size, sha256_of(path)))
        except OSError as error:
            raise RecordError(f"cannot add {path} to step {self.number}: {error.strerror or error}") from error

    def add_files(self, checkpoint: bool = False) -> None:
        """Make every file in :meth:`folder` that is not yet part of the step so."""
        known = {entry.path for entry in self._state}
        for path in sorted(self.folder(checkpoint).rglob("*")):
            relative = path.relative_to(self._run.path).as_posix()
            if path.is_file() and relative not in known and not path.name.startswith(TEMPORARY_PREFIX):
                self.add_file(relative)

    def commit(self, extra: Mapping[str, Any] | None = None) -> Manifest:
        """Check the step against its plan and make it visible. ``extra`` is stored in the manifest as JSON."""
        if self._committed:
            raise RecordError(f"step {self.number} is committed twice")
        self._check_plan()
        manifest = Manifest(
            self.number, tuple(self._shards), tuple(self._state), dict(sorted(self._expected.items())), extra or {}
        )
        write_bytes(manifest_path(self._run.path, self.number), manifest.to_bytes())
        self._committed = True
        self._run._prune()
        return manifest

    def commit_later(self, write: Callable[[], None], extra: Mapping[str, Any] | None = None) -> None:
        """Have a thread ``write`` what is missing and commit; the last thing to do with a step.

        Returns when the step that was committed so before is through; raises what ended that.
        """
        self._check_plan()
        self._run.settle()

        def finish() -> None:
            write()
            self.commit(extra)

        self._handed_over = True
        self._run._deferred_number = self.number
        self._run._deferred.begin(finish)

    def _check_plan(self) -> None:
        counts = {kind: 0 for kind in self._expected}
        for shard in self._shards:
            counts[shard.kind] = counts.get(shard.kind, 0) + shard.row_count
        for kind, count in counts.items():
            if kind in COUNTED_KINDS and kind not in self._expected:
                raise RecordError(f"step {self.number} holds {kind}, but its plan does not say how many there must be")
            if kind in self._expected and count != self._expected[kind]:
                raise RecordError(
                    f"step {self.number} of {self._run.path} is not complete: {count:,} rows of {kind}, the plan says "
                    f"{self._expected[kind]:,}. Nothing was committed; a worker's episodes may be missing. "
                    "Start the same command again to repeat the step."
                )
        for kind, chunks in self._rollout_ids.items():
            ids = pa.chunked_array([chunk for column in chunks for chunk in column.chunks], type=pa.string())
            if len(pc.unique(ids)) != len(ids):
                twice = next(entry["values"] for entry in pc.value_counts(ids).to_pylist() if entry["counts"] > 1)
                raise RecordError(f"step {self.number}: rollout {twice!r} appears more than once among its {kind}")
