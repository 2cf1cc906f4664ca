"""What a run's result depends on, besides its configuration: panels, vocabulary, prompts, code, versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rised
from rised.config import ConfigError
from rised.config.resolved import settings_hash, strict_values
from rised.environments.base import Task
from rised.experiment import RunConfig, RunSettings
from rised.records.errors import RecordError
from rised.records.layout import HEADER
from rised.records.shards import RunReader
from rised.rubrics.vocabulary import Vocabulary
from stages.loop import VALIDATION
from stages.setup import panel_hash

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "textworld", "alfworld", "bm25s", "sqlglot")


def run_header(
    config: RunConfig, tasks: Sequence[Task], vocabulary: Vocabulary, judge_id: str, prompts: Mapping[str, str]
) -> dict[str, Any]:
    """The content of a run's manifest.json; equal for a resumed run, or the run must not be resumed."""
    return {
        "experiment": config.experiment,
        "method": config.method.name,
        "seed": config.seed,
        "config_hash": settings_hash(config),
        "panel_hashes": {split: panel_hash(tasks, split) for split in ("train", "validation")},
        "vocabulary_hash": vocabulary.hash,
        "vocabulary_entries": vocabulary.entry_hashes,
        "judge": judge_id,
        "prompt_hashes": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(prompts.items())},
        "policy_hash": folder_hash(config.model.folder),
        "rised": rised.__version__,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES} | _further_packages(config),
    }


def refuse_other_vocabulary(config: RunConfig, vocabulary: Vocabulary, run: Path) -> None:
    """RecordError if a run that is there began with another vocabulary: names the file and the entries that differ."""
    path = run / HEADER
    if not path.is_file():
        return
    header = RunReader(run).header()
    if header.get("vocabulary_hash") != vocabulary.hash:
        entries = header.get("vocabulary_entries")  # runs of earlier versions have none
        edits = (vocabulary.edits_since(entries) or "order or version") if entries else "which entries is not recorded"
        raise RecordError(
            f"the vocabulary {config.rubrics.vocabulary} was edited since {path} was written ({edits}). Restore the "
            "file that the run began with, or start a new run in another folder."
        )


def refuse_other_inputs(config: RunConfig, tasks: Sequence[Task], vocabulary: Vocabulary, run: Path) -> None:
    """RecordError if a run that is there began with other tasks, another vocabulary or another policy.

    For finished runs, which open no environment: the header as a whole is compared when a run goes on.
    """
    path = run / HEADER
    if not path.is_file():
        return
    refuse_other_vocabulary(config, vocabulary, run)
    header = RunReader(run).header()
    now = {
        "panel_hashes": {split: panel_hash(tasks, split) for split in ("train", "validation")},
        "policy_hash": folder_hash(config.model.folder),
    }
    for key, value in now.items():
        if header.get(key) != value:
            raise RecordError(
                f"{path}: {key!r} was {header.get(key)!r} when the run began and is {value!r} now. "
                "Restore what it began with, or start a new run in another folder."
            )


def code_hash() -> str:
    """SHA-256 over the library's and the stages' source files."""
    root = Path(rised.__file__).resolve().parent
    digest = hashlib.sha256()
    for folder in (root, root.parent / "stages"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _further_packages(config: RunConfig) -> dict[str, str]:
    """What brings the policy, where it is no folder; what learns and what plays, where it is not torch alone."""
    from rised.models.engines import ENGINES  # loads torch, which readers of finished runs do without

    names = [] if config.model.folder.is_dir() else [config.model.path]
    names += ["deepspeed"] if config.learner.type == "deepspeed" else []
    return {name: version(name) for name in names} | ENGINES[config.engine.type].packages(config.engine)


def folder_hash(folder: Path) -> str | None:
    """SHA-256 over a model directory's files; None if the policy is no local folder."""
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def validation_basis(config: RunSettings, tasks: Sequence[Task]) -> dict[str, Any]:
    """All that the validation of a policy follows from: its settings, the panel and the weights."""
    other = (
        "validation.every",
        "validation.tags",
        *(f"environments.{name}.train_tasks" for name in config.environments),
    )
    parts = ("environments", "model", "engine", "rollout", "validation")
    settings = {
        key: value for key, value in strict_values(config).items() if key.split(".")[0] in parts and key not in other
    }
    policy = folder_hash(config.model.folder)
    return {**settings, "validation panel": panel_hash(tasks, VALIDATION), "policy": policy}


def refuse_other_basis(before: Mapping[str, Any], now: Mapping[str, Any], out: Path, mend: str) -> None:
    """ConfigError if a validation that is there follows from something else than the one asked for."""
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        what = ", ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in changed[:3])
        raise ConfigError(f"{out} holds another validation ({what}): {mend}")
