"""What all steps share: the folder of a discovery, the record of each step, and when a step is done already.

A step is done when its record ``<step>.yaml`` names the same settings, inputs and outputs (by SHA-256) as there are.
The record is written last, so a step that was killed is done again; what a model has answered by then is kept.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rised.config import ConfigError
from rised.config.loader import load, read_plain
from rised.config.resolved import settings_hash
from rised.records.errors import RecordError
from rised.records.files import sha256_of, write_bytes
from rised.rubrics.base import RubricError
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.settings import DiscoverySettings

MAKERS = {
    "sampled.parquet": "sample",
    "pairs.parquet": "sample",
    "observations.parquet": "propose",
    "candidates.parquet": "normalise",
    "merged.parquet": "merge",
    "screen.parquet": "screen",
    "skills.yaml": "group",
}
"""File -> the step that writes it."""


@dataclass(frozen=True, slots=True)
class Work:
    """One discovery: its settings and its folder. ``runs``: further run directories, from the command line."""

    settings: DiscoverySettings
    folder: Path
    runs: tuple[Path, ...] = ()

    def path(self, name: str) -> Path:
        return self.folder / name


@dataclass(frozen=True, slots=True)
class Step:
    """``run`` does the work and returns what the record says of it (counts, models, prompts)."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    run: Callable[[Work], Mapping[str, Any]]
    sources: Callable[[Work], Mapping[str, str]] = lambda work: {}
    """Inputs from outside the folder: name -> hash."""
    always: bool = False
    """Run even when its record says that it is done."""


def perform(step: Step, work: Work) -> dict[str, Any]:
    """Run a step unless it is done; returns its record. DiscoveryError for a missing input."""
    missing = [name for name in step.reads if not work.path(name).is_file()]
    if missing:
        maker = MAKERS.get(missing[0], "the step before")
        raise DiscoveryError(
            f"{work.path(missing[0])} is not there: run `python -m rubric_discovery.{maker}` with the same --out first"
        )
    inputs = {name: sha256_of(work.path(name)) for name in step.reads} | dict(step.sources(work))
    head = {"step": step.name, "settings_hash": settings_hash(work.settings), "inputs": inputs}
    known = read_record(work, step.name)
    if known is not None and not step.always and _is_done(work, head, known):
        print(f"{step.name}: done already", flush=True)
        return known
    work.path(f"{step.name}.yaml").unlink(missing_ok=True)
    found = dict(step.run(work))
    outputs = {name: sha256_of(work.path(name)) for name in step.writes}
    record = head | {"outputs": outputs} | found
    write_yaml(work.path(f"{step.name}.yaml"), record)
    print(f"{step.name}: {', '.join(f'{k} {v}' for k, v in found.get('counts', {}).items())}", flush=True)
    return record


def read_record(work: Work, step: str) -> dict[str, Any] | None:
    """What a step's record says; None if it has none that can be read."""
    path = work.path(f"{step}.yaml")
    try:
        found = read_plain(path) if path.is_file() else None
    except ConfigError:
        return None
    return found if isinstance(found, dict) else None


def _is_done(work: Work, head: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    if any(record.get(key) != value for key, value in head.items()):
        return False
    outputs = record.get("outputs")
    if not isinstance(outputs, dict):
        return False
    return all(work.path(name).is_file() and sha256_of(work.path(name)) == value for name, value in outputs.items())


def write_yaml(path: Path, value: Any, comment: str = "") -> None:
    """Write a YAML file atomically, keys in the given order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 1 << 20
    stream = io.StringIO()
    yaml.dump(value, stream)
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    write_bytes(path, (head + stream.getvalue()).encode())


def main_of(step: Step, description: str | None, arguments: Sequence[str] | None = None) -> int:
    """The command of a step. Errors that say themselves what is wrong are printed without a traceback, exit code 2."""
    parser = argparse.ArgumentParser(
        prog=f"python -m rubric_discovery.{step.name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, help="discovery file (configs/discovery/*.yaml)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the discovery")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="run directories, beside those of the file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b.c=value", help="override one key; may be given again"
    )
    args = parser.parse_args(arguments)
    try:
        perform(step, Work(load(DiscoverySettings, [args.config], args.set), args.out, tuple(args.runs)))
    except (DiscoveryError, ConfigError, RecordError, RubricError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the replies it has", file=sys.stderr)
        return 130
    return 0
