"""Which runs and stages need a judge's server, and how it is started. Light enough to plan with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rised.config import ConfigError
from rised.config.overlays import compose, merge
from rised.config.paths import shipped
from rised.config.source import Mapping, Tree, plain_value, written_in
from rised.methods.registry import piece_class

METHODS, JUDGES = Path("configs/methods"), Path("configs/judges")
RULES = "rules"
STAGE = "judge_server"
JUDGE_READERS = ("selector", "teacher", "steering")
"""The kinds of a method's pieces that may decide by tags, or ask the judge model themselves."""


@dataclass(frozen=True, slots=True)
class JudgeNeed:
    """A server that must answer while a stage runs. ``config``: the file it is served from."""

    endpoint: Path
    config: Path

    @property
    def command(self) -> tuple[str, ...]:
        words = ("python", "-m", "stages.serve_judge", "--config", str(self.config))
        return (*words, "--endpoint", str(self.endpoint))


def judge_need(experiment: Path, method: str) -> JudgeNeed | None:
    """The server that a run of ``method`` needs; None if it asks no judge model, or one at a fixed address.

    The server is shared by all experiments whose judge comes from the same file unchanged.
    """
    document = compose([experiment])
    endpoint = _served_at(document)
    if endpoint is None:
        return None
    always = _plain(document, "rubrics", "tag_training") != "when_needed"
    validation = bool(_plain(document, "validation", "tags"))
    if not (always or validation or asks_judge(document, method)):
        return None
    files = sorted(written_in(_at(document, "rubrics", "judge")) | written_in(_at(document, STAGE)))
    same = (Path(os.path.relpath(file)) for file in files if _served(compose([file])) == _served(document))
    return JudgeNeed(Path(endpoint), next(same, experiment))


def named_judge_need(judge: str) -> JudgeNeed | None:
    """The server of a judge by the name of its file in configs/judges, or by the file itself; None for ``rules``, and
    for one at a fixed address or that says not how it is served. ConfigError for an unknown one.
    """
    if judge == RULES:
        return None
    path = Path(judge) if judge.endswith(".yaml") else shipped(JUDGES / f"{judge}.yaml")
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in shipped(JUDGES).glob("*.yaml")))
        raise ConfigError(f"there is no judge file {path}: choose one of {RULES}, {known}")
    endpoint = _served_at(compose([path]))
    return None if endpoint is None else JudgeNeed(endpoint, path)


def served_model(path: Path) -> tuple[str, str]:
    """The model of a judge file, and the file in which its server says where it is; "" for what it does not say."""
    judge = _plain(compose([path]), "rubrics", "judge") or {}
    return str(judge.get("model", "")), str(_served_at(compose([path])) or "")


def asks_judge(document: Mapping, method: str) -> bool:
    """Whether a piece of the method, as the experiment overlays it, needs a judge, for tags or questions of its own."""
    settings: Tree | None = compose([METHODS / f"{method}.yaml"]).items.get("method")
    for overlay in (_at(document, "method_scale"), _at(document, "method_overrides", method)):
        if isinstance(settings, Mapping) and isinstance(overlay, Mapping):
            settings = merge(settings, overlay)
    chosen = {} if settings is None else plain_value(settings)
    pieces = {kind: chosen[kind] for kind in JUDGE_READERS if chosen.get(kind)}
    return any(piece_class(kind, settings["type"]).asks_judge(settings) for kind, settings in pieces.items())


def _served_at(document: Mapping) -> Path | None:
    """The endpoint file of the judge, where the document says how a server writes it."""
    judge = _plain(document, "rubrics", "judge") or {}
    endpoint = str(judge.get("endpoint") or "")
    if judge.get("type") != "llm" or _at(document, STAGE) is None or "://" in endpoint or not endpoint:
        return None
    return Path(endpoint)


def _served(document: Mapping) -> tuple[Any, Any]:
    """All that a server follows from."""
    return _plain(document, "rubrics", "judge"), _plain(document, STAGE)


def _at(tree: Tree | None, *keys: str) -> Tree | None:
    for key in keys:
        tree = tree.items.get(key) if isinstance(tree, Mapping) else None
    return tree


def _plain(document: Mapping, *keys: str) -> Any:
    found = _at(document, *keys)
    return None if found is None else plain_value(found)
