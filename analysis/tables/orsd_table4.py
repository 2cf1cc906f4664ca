"""ORSD Tables 4 and 5: the paper's optimisation, sampling and environment settings beside those of our runs.

python -m analysis.tables.orsd_table4 --runs results/laptop_orsd --out build/tables
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import published, scale
from analysis.command import run_tables
from analysis.formatting import Cell, Group, PrintedTable
from analysis.frames import Frames
from analysis.panels import flat
from analysis.tables import BuiltTable
from analysis.tables.table6 import Reader, key, text_of, values_of

WITHOUT_MODEL = {"tags": "tags (no model)", "vocabulary": "vocabulary (no model)"}


def _criteria(config: Mapping[str, Any]) -> object:
    least, most = (config.get(f"method.teacher.writer.{name}") for name in ("least", "most"))
    return None if least is None else f"{least}-{most}"


def _kind(name: str) -> Reader:
    """The type of a component that the paper gives to a model; ours may need none."""

    def read(config: Mapping[str, Any]) -> object:
        kind = config.get(f"{name}.type")
        return WITHOUT_MODEL.get(str(kind), kind)

    return read


def _validation(config: Mapping[str, Any]) -> object:
    count, temperature = (config.get(f"validation.{name}") for name in ("rollouts_per_task", "temperature"))
    return None if count is None else f"{count} trajectories per task, temperature {text_of(temperature)}"


SETTINGS: dict[str, tuple[str, Reader]] = {
    "optimisation": ("Policy loss", key("method.policy_loss.type")),
    "hardware": ("Hardware", lambda _: None),
    "tasks_per_update": ("Tasks per update", key("method.candidate_groups")),
    "rollouts_per_task": ("Rollouts per task", key("rollouts_per_group")),
    "optimizer_steps": ("Optimizer steps", key("updates")),
    "learning_rate": ("Learning rate", key("learner.learning_rate")),
    "clip_epsilon": ("Clip ε", key("method.policy_loss.clip_low")),
    "kl_estimator": ("KL estimator", key("method.kl.estimator")),
    "kl_coefficient": ("KL coefficient", key("method.kl.coefficient")),
    "token_credit_alpha": ("Token credit α", key("method.advantage.alpha")),
    "rubric_candidates_per_task": ("Rubric candidates per task", key("method.teacher.candidates")),
    "criteria_per_bundle": ("Criteria per bundle", _criteria),
    "bundle_selection": ("Choice of the bundle", key("method.teacher.choice")),
    "verifier_decoding": ("Verifier", _kind("method.teacher.verifier")),
    "generator_sampling": ("Writer of bundles", _kind("method.teacher.writer")),
    "verifier_concurrency": ("Verifier's concurrent requests", lambda _: None),
    "verifier_retries": ("Verifier's retries", lambda _: None),
    "validation_sampling": ("Validation", _validation),
    "alfworld_response_budget": ("ALFWorld's budget, tokens", key("rollout.max_episode_tokens")),
    "webshop_response_budget": ("WebShop's budget, tokens", key("rollout.max_episode_tokens")),
    "webshop_max_actions": ("WebShop's actions at most", key("rollout.max_turns.webshop")),
    "webshop_invalid_action_coefficient": ("Invalid-action coefficient", key("method.reward.invalid_penalty")),
    "webshop_no_progress_coefficient": ("No-progress coefficient", key("method.reward.loop_penalty")),
    "evaluation_interval_steps": ("Updates between evaluations", key("validation.every")),
}
"""Setting of the paper's tables -> its words, and how it is read from a run's configuration (None: not in it)."""


def build(frames: Frames) -> list[BuiltTable]:
    """``orsd_table4``."""
    paper = published.load("orsd_table4_5_config").set_index("setting")["value"]
    configs = [flat(run.config) for run in frames.experiment.runs]
    records = [
        (setting, words, text_of(paper[setting]), values_of(configs, read))
        for setting, (words, read) in SETTINGS.items()
    ]
    printed = PrintedTable(
        name="orsd_table4",
        caption="ORSD Tables 4 and 5. Settings of the paper, and those of these runs.",
        columns=["Setting", "Published", "These runs"],
        groups=[Group("", [[Cell(text) for text in record[1:]] for record in records])],
        notes=[
            f"These runs: {scale.describe(frames.experiment)}. Read from the configuration saved with every run; "
            "several values where runs differ, a dash where it holds none.",
        ],
        left_columns=(1, 2),
    )
    frame = pd.DataFrame(records, columns=["setting", "words", "published", "these_runs"])
    return [BuiltTable(printed, frame.drop(columns="words"))]


def main(arguments: Sequence[str] | None = None) -> int:
    return run_tables(build, "ORSD Tables 4 and 5: configuration", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
