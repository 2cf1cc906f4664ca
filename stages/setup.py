"""What several stages do first: read a run's configuration, its task panels, its vocabulary.

Everything that can be wrong with the input is found here, before a model is loaded or a worker started.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from rised.config import ConfigError
from rised.config.loader import bind, load, load_text
from rised.config.overlays import apply_overrides, compose, merge
from rised.config.paths import shipped
from rised.config.resolved import refuse_changed_strict_keys
from rised.config.source import Mapping, Origin, Scalar, Tree
from rised.environments.base import Task
from rised.environments.discovery import get
from rised.environments.pool import EnvironmentPool
from rised.experiment import GRID_KEYS, ExperimentConfig, RunConfig, RunSettings, environment_settings
from rised.methods.composition import Method
from rised.records.errors import RecordError
from rised.records.layout import CONFIG
from rised.records.schemas import from_table, to_table
from rised.records.shards import read_shard, write_shard
from rised.rubrics.vocabulary import load_vocabulary

METHODS = Path("configs/methods")
PANEL_PER_GROUP = 2
"""How many training tasks an environment needs for each of its groups in an update."""


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The whole experiment, validated; ConfigError if it names a method that has no file of that name."""
    experiment = load(ExperimentConfig, [path], overrides)
    for method in experiment.methods:
        _method_document(_method_file(method, f"{path}: methods: "))
    return experiment


def load_run(path: Path, method: str, seed: int, overrides: Sequence[str] = ()) -> RunConfig:
    """One run of an experiment: its file, the method's file, the experiment's overlays on methods, the overrides."""
    experiment = load_experiment(path, [o for o in overrides if not o.startswith("method.")])
    document = compose([path])
    scale = document.items.get("method_scale")
    per_method = document.items.get("method_overrides")
    origin = Origin(str(path))
    settings = _method_document(_method_file(method))
    single = per_method.items.get(method) if isinstance(per_method, Mapping) else None
    for overlay in (scale, single):
        if isinstance(overlay, Mapping):
            settings = merge(settings, overlay)
    items = {key: value for key, value in document.items.items() if key not in GRID_KEYS}
    keys = {key: value for key, value in document.keys.items() if key not in GRID_KEYS}
    extra: dict[str, Tree] = {"method": settings, "seed": Scalar(str(seed), False, origin)}
    run = Mapping({**items, **extra}, {**keys, **dict.fromkeys(extra, origin)}, origin)
    grid_overrides = tuple(f"{key}" for key in GRID_KEYS)
    config = bind(RunConfig, apply_overrides(run, [o for o in overrides if not o.startswith(grid_overrides)]))
    if config.method.name != method:
        raise ConfigError(f"{METHODS / method}.yaml names its method {config.method.name!r}: file and name must agree")
    if method not in experiment.methods:
        raise ConfigError(f"{path} has no method {method!r}; it has {', '.join(experiment.methods)}")
    _refuse_small_panels(config, path)
    return config


def _refuse_small_panels(config: RunConfig, path: Path) -> None:
    """A step's groups are of different tasks, also where one permutation of the panel ends and the next begins."""
    groups = math.ceil(config.method.candidate_groups / len(config.trained_on))
    groups += config.rollout.spare_groups(groups)
    for name in config.trained_on:
        train_tasks = config.environments[name].train_tasks
        if train_tasks < PANEL_PER_GROUP * groups:
            raise ConfigError(
                f"{path}: environments.{name}.train_tasks is {train_tasks}; {groups} different groups in "
                f"each update need at least {PANEL_PER_GROUP * groups}"
            )


def refuse_untaggable(config: RunConfig) -> None:
    """ConfigError if episodes are to be tagged of an environment of which the vocabulary says nothing."""
    vocabulary = load_vocabulary(Path(config.rubrics.vocabulary))
    decides = Method.from_settings(config.method, vocabulary).needs_tags
    reasons = {
        f"method {config.method.name!r} decides by tags": config.trained_on if decides else [],
        "rubrics.tag_training is 'always'": config.trained_on if config.rubrics.tag_training == "always" else [],
        "validation.tags is true": list(config.environments) if config.validation.tags else [],
    }
    for reason, names in reasons.items():
        unknown = [name for name in names if name not in vocabulary.environments]
        if unknown:
            raise ConfigError(
                f"{', '.join(f'environments.{name}' for name in unknown)}: {config.rubrics.vocabulary} says nothing of "
                f"it, and {reason}: take a method without rubrics (grpo_64, gigpo) with rubrics.tag_training "
                "when_needed and validation.tags false, or name a vocabulary that covers it in rubrics.vocabulary"
            )


def _method_file(method: str, where: str = "") -> Path:
    path = shipped(METHODS / f"{method}.yaml")
    if not path.is_file():
        known = sorted(p.stem for p in shipped(METHODS).glob("*.yaml"))
        if not known:
            raise ConfigError(f"{where}there is no {METHODS} here: run from the folder of a checkout")
        near = difflib.get_close_matches(method, known, n=1)
        advice = f"; did you mean {near[0]!r}?" if near else "."
        raise ConfigError(f"{where}there is no method file {path}{advice} Known methods are {', '.join(known)}.")
    return path


def _method_document(path: Path) -> Mapping:
    settings = compose([path]).items.get("method")
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{path}: a method file holds one mapping under the key `method`")
    name = settings.items.get("name")
    if isinstance(name, Scalar) and name.text != path.stem:
        raise ConfigError(f"{name.origin}: method.name is {name.text!r} in the file of {path.stem!r}: they must agree")
    return settings


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """One row per task, in order."""
    rows = [
        {
            "environment": task.environment,
            "split": task.split,
            "task_id": task.task_id,
            "seed": task.seed,
            "payload": task.payload,
            "content_hash": task.content_hash,
        }
        for task in tasks
    ]
    write_shard(path, to_table(rows, "tasks"))


def read_tasks(path: Path) -> list[Task]:
    """The panels of an experiment. RecordError if the file is missing, foreign or truncated."""
    table: pa.Table = read_shard(path, "tasks")
    return [Task(**row) for row in from_table(table, str(path))]


def panel(tasks: Sequence[Task], environment: str, split: str) -> list[Task]:
    """Tasks of one environment and split, in panel order; RecordError if there are none."""
    chosen = [task for task in tasks if task.environment == environment and task.split == split]
    if not chosen:
        raise RecordError(f"the task file has no {split} task of {environment}: run the prepare stage again")
    return chosen


def panel_hash(tasks: Sequence[Task], split: str) -> str:
    """SHA-256 over the content hashes of a split's tasks, in order."""
    rows = [[task.environment, task.task_id, task.content_hash] for task in tasks if task.split == split]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def open_pool(config: RunSettings) -> EnvironmentPool:
    """The environment workers of a run, after the files that ``prepare`` wrote for them and that are gone."""
    for name, entry in config.environments.items():
        restore = get(name).restore
        if restore is not None:
            restore(entry.settings)
    return EnvironmentPool(
        environment_settings(config),
        config.rollout.environment_workers,
        timeout_s=config.rollout.environment_timeout_s,
        recycle_after_episodes=config.rollout.recycle_workers_after,
    )


def refuse_other_run(config: RunConfig, out: Path) -> None:
    """ConfigError naming the strict keys in which a run that is already in ``out`` differs, finished or not."""
    saved = out / CONFIG
    if saved.is_file():
        before = load_text(RunConfig, saved.read_text(), str(saved))
        refuse_changed_strict_keys(before, config, str(saved))
