"""What a run's result depends on, besides its configuration: panels, vocabulary, prompts, code, versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rised
from rised.config.resolved import settings_hash
from rised.environments.base import Task
from rised.experiment import RunConfig
from rised.rubrics.vocabulary import Vocabulary
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
        "judge": judge_id,
        "prompt_hashes": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(prompts.items())},
        "policy_hash": folder_hash(Path(config.model.path)),
        "rised": rised.__version__,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def code_hash() -> str:
    """SHA-256 over the library's and the stages' source files."""
    root = Path(rised.__file__).resolve().parent
    digest = hashlib.sha256()
    for folder in (root, root.parent / "stages"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def folder_hash(folder: Path) -> str | None:
    """SHA-256 over a model directory's files; None if the policy is no local folder."""
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
