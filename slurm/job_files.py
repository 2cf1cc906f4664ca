"""The files by which a stage's job and its launchers know of each other, in one folder a stage.

job.json        the job that the latest launcher submitted, until a launcher has taken its result over
attempts.jsonl  one line for each start of a job
finished.json   written by the job when its command succeeded; finished-N.json by part N of a job array
config.yaml     the experiment file that the job reads, as it was when the job was submitted
kept/           the stage's outputs, so that they can be put back when Snakemake removed them
<job id>/       submitit's files and the job's log
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rised.config import ConfigError
from rised.config.overlays import compose
from rised.config.source import text_of
from slurm.errors import StageFailed

CONFIG = "config.yaml"


@dataclass(frozen=True, slots=True)
class StageCall:
    """A stage's command, what it reads and what it must have written when it ends with 0."""

    name: str
    stage: str
    command: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    resumes: bool = False
    """The command goes on where it was stopped, so that a time limit is no failure."""
    parts: int = 1
    """More than one: a job array. Each part runs the command with STAGE_PART of STAGE_PARTS, and must be able to run
    again; afterwards the command runs once without them and writes the outputs from what the parts left."""

    def fingerprint(self) -> str:
        """Changes with the command and with the size or time of any input: a job of another one is not taken over.

        Taken once, by the launcher: inputs may change while it waits.
        """
        stats = [(path, *_size_and_time(Path(path))) for path in self.inputs]
        return hashlib.sha256(json.dumps([self.command, stats, self.outputs, self.parts]).encode()).hexdigest()


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Paths in a stage's folder."""

    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job.json"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def attempts(self) -> Path:
        return self.folder / "attempts.jsonl"

    @property
    def finished(self) -> Path:
        return self.folder / "finished.json"

    def finished_part(self, part: int) -> Path:
        return self.folder / f"finished-{part}.json"

    def parts_to_do(self, parts: int, fingerprint: str) -> list[int]:
        """Of so many parts of an array those that did not finish as parts of this very call."""
        done = [read_json(self.finished_part(part)) or {} for part in range(parts)]
        return [part for part, mark in enumerate(done) if mark.get("fingerprint") != fingerprint]

    @property
    def kept(self) -> Path:
        return self.folder / "kept"

    def keep(self, outputs: Sequence[str]) -> None:
        """Link (or copy) each output file into ``kept``."""
        self.kept.mkdir(exist_ok=True)
        for place, output in enumerate(outputs):
            _link(Path(output), self.kept / f"{place}-{Path(output).name}")

    def put_back(self, outputs: Sequence[str]) -> None:
        """Restore the outputs that are missing. FileNotFoundError if one was never kept."""
        for place, output in enumerate(outputs):
            if not Path(output).exists():
                Path(output).parent.mkdir(parents=True, exist_ok=True)
                _link(self.kept / f"{place}-{Path(output).name}", Path(output))

    def pin(self, call: StageCall) -> StageCall:
        """The call with a copy of its experiment file (``--config FILE``), what that extends laid into it.

        The file may be moved or edited while the job waits in the queue, or is requeued.
        """
        words = list(call.command)
        for place, (option, value) in enumerate(pairwise(words), start=1):
            if option == "--config" and Path(value).is_file():
                try:
                    text = text_of(compose([value]))
                except ConfigError:
                    continue  # none of ours: its program says what is wrong with it
                copy = self.folder / CONFIG
                write_text(copy, text)
                words[place] = str(copy)
        return replace(call, command=tuple(words))

    def write_job(
        self, call: StageCall, fingerprint: str, executor: str, job: str, born: str, parts: Sequence[int], tasks: int
    ) -> None:
        """A job of the call is there (or, with ``job`` "", about to be), and nobody has taken its result over."""
        record: dict[str, Any] = {"job": job, "born": born, "executor": executor, "fingerprint": fingerprint}
        record |= {"name": call.name, "outputs": call.outputs, "parts": list(parts), "tasks": tasks}
        write_json(self.job, record | {"end": None, "last_line": ""})

    def close_job(self, end: str, last_line: str = "") -> None:
        """The job's result was taken over, or there will be none: no later launcher may attach to it."""
        record = read_json(self.job)
        if record is not None:
            write_json(self.job, record | {"end": end, "last_line": last_line})

    def forget_result(self) -> None:
        """Nothing of an earlier job may be taken for the next one's."""
        self.finished.unlink(missing_ok=True)
        shutil.rmtree(self.kept, ignore_errors=True)

    def forget_parts(self) -> None:
        """What the parts of an array left has been put together; if it is wanted again, they run again."""
        for mark in self.folder.glob("finished-*.json"):
            mark.unlink()


def _link(source: Path, target: Path) -> None:
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    try:
        os.link(source, aside)
    except OSError:
        shutil.copyfile(source, aside)
    os.replace(aside, target)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Atomically."""
    write_text(path, json.dumps(document, indent=1, sort_keys=True))


def write_text(path: Path, text: str) -> None:
    """Atomically."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The document, or None if there is no such file. StageFailed if it is damaged."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StageFailed(
            f"{path} is no JSON ({error}): end its job, if it runs, remove the file and run again"
        ) from None
    return document


def append_line(path: Path, document: dict[str, Any]) -> None:
    """One JSON line, in one write."""
    with path.open("a") as stream:
        stream.write(json.dumps(document, sort_keys=True) + "\n")
