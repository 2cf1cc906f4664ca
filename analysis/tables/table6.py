"""Table 6: the configuration of our runs, read from what was saved with them, beside the paper's.

The second block holds settings that the paper does not publish: there ours are choices [ours]. Where runs differ in a
setting (methods do), all values are printed.

    python -m analysis.tables.table6 --runs results/laptop_grid --out build/tables
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import published, scale
from analysis.command import run_tables
from analysis.formatting import MISSING, Cell, Group, PrintedTable
from analysis.frames import Frames
from analysis.panels import flat
from analysis.tables import BuiltTable
from rised.rubrics.vocabulary import load_vocabulary

Reader = Callable[[Mapping[str, Any]], object]
BACKBONES = ("Qwen2.5-3B-Instruct", "Qwen3-4B")


def key(name: str) -> Reader:
    return lambda config: config.get(name)


def mapped(name: str) -> Reader:
    """A setting that may be one value or one for each environment."""

    def read(config: Mapping[str, Any]) -> object:
        if name in config:
            return config[name]
        inner = {k.removeprefix(f"{name}."): v for k, v in config.items() if k.startswith(f"{name}.")}
        return ", ".join(f"{value} ({environment})" for environment, value in inner.items()) or None

    return read


def _judge(config: Mapping[str, Any]) -> object:
    model = config.get("rubrics.judge.model")
    return (
        str(model).rsplit("/", 1)[-1]
        if model
        else {"rules": "rules, no model"}.get(config.get("rubrics.judge.type", ""))
    )


def _validation_rollouts(config: Mapping[str, Any]) -> object:
    count, at_ends = (config.get(f"validation.rollouts_per_task{key}") for key in ("", "_at_ends"))
    return count if at_ends in (None, count) else f"{count} (first and last: {at_ends})"


def _reasoning(config: Mapping[str, Any]) -> object:
    thinking = config.get("model.template_arguments.enable_thinking")
    return None if thinking is None else "enabled" if thinking else "disabled"


PUBLISHED: dict[str, tuple[str, Reader]] = {
    "sampling_temperature": ("Sampling temperature", key("rollout.temperature")),
    "max_new_tokens_per_turn": ("Max new tokens per turn", mapped("rollout.max_new_tokens_per_turn")),
    "reasoning_mode": ("Reasoning mode", _reasoning),
    "max_turns_per_episode": ("Max turns per episode", mapped("rollout.max_turns")),
    "max_episode_tokens": ("Max episode length (tokens)", key("rollout.max_episode_tokens")),
    "updates": ("Updates", key("updates")),
    "candidate_groups_per_update": ("Candidate groups per update", key("method.candidate_groups")),
    "selected_groups_per_update": ("Selected groups per update", key("method.selected_groups")),
    "rollouts_per_group": ("Rollouts per group", key("rollouts_per_group")),
    "judge": ("Judge", _judge),
    "rubrics": ("Rubrics", lambda _: len(load_vocabulary())),
    "skills": ("Skills", lambda _: len(load_vocabulary().skill_ids)),
    "validation_rollouts_per_prompt": ("Validation rollouts per prompt", _validation_rollouts),
}
"""Setting of the paper's table -> its words, and how it is read from a run's configuration."""

UNPUBLISHED: dict[str, tuple[str, Reader]] = {
    "learning_rate": ("Learning rate", key("learner.learning_rate")),
    "clip_low": ("Clip, low", key("method.policy_loss.clip_low")),
    "clip_high": ("Clip, high", key("method.policy_loss.clip_high")),
    "reduction": ("Reduction of the policy loss", key("method.policy_loss.reduction")),
    "kl_coefficient": ("KL coefficient", key("method.kl.coefficient")),
    "kl_estimator": ("KL estimator", key("method.kl.estimator")),
    "distillation_coefficient": ("Distillation coefficient", key("method.distillation.coefficient")),
    "redundancy_weight": ("Redundancy weight of the selection", key("method.selector.redundancy_weight")),
    "steering_on_ratio": ("Steering on at violates / demonstrates above", key("method.steering.on_ratio")),
    "window_steps": ("Window of recent tags (steps)", key("rubrics.window_steps")),
    "validation_temperature": ("Validation temperature", key("validation.temperature")),
    "validation_every": ("Updates between evaluations", key("validation.every")),
}
"""Settings that the paper's text does not give."""


def build(frames: Frames) -> list[BuiltTable]:
    """``table6``."""
    paper = published.load("rised_table6_rollout_config").set_index("setting")
    configs = [flat(run.config) for run in frames.experiment.runs]
    records, blocks = [], []
    for source, block in ((scale.PUBLISHED, PUBLISHED), (scale.OURS, UNPUBLISHED)):
        rows = []
        for setting, (words, read) in block.items():
            known = setting in paper.index
            theirs = [text_of(paper.loc[setting, b]) if known else "not published" for b in BACKBONES]
            ours = values_of(configs, read)
            rows.append([Cell(words), *map(Cell, theirs), Cell(ours)])
            records.append((setting, source, *theirs, ours))
        blocks.append(rows)
    printed = PrintedTable(
        name="table6",
        caption="Table 6. Training configuration: the paper's for its two backbones, and that of these runs.",
        columns=["Setting", *[f"{b} (published)" for b in BACKBONES], "These runs"],
        groups=[
            Group("settings of the paper's table and text", blocks[0]),
            Group("not published; this project's choices [ours]", blocks[1]),
        ],
        notes=[
            f"These runs: {scale.describe(frames.experiment)}. Read from the configuration saved with "
            "every run; several "
            "values where runs differ.",
            *_other_vocabulary(frames),
            *([] if any(configs) else ["The runs' configurations hold none of these settings."]),
        ],
        left_columns=(1, 2, 3),
    )
    columns = ["setting", "block", *[b.lower().replace(".", "_").replace("-", "_") for b in BACKBONES], "these_runs"]
    return [BuiltTable(printed, pd.DataFrame(records, columns=columns))]


def _other_vocabulary(frames: Frames) -> list[str]:
    """Says so where runs were tagged against another vocabulary than the one that is counted here."""
    recorded = {run.header.get("vocabulary_hash") for run in frames.experiment.runs} - {load_vocabulary().hash}
    return ["Rubrics and skills are those of this version's vocabulary; some runs used another."] if recorded else []


def values_of(configs: Sequence[Mapping[str, Any]], read: Reader) -> str:
    """All different values over the runs, in order of appearance; missing where no run has the setting."""
    found = [read(config) for config in configs]
    distinct = list(dict.fromkeys(text_of(value) for value in found if value is not None))
    return ", ".join(distinct) or MISSING


def text_of(value: object) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return MISSING
    return f"{value:g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "Table 6: configuration", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
