"""What stages that work on finished runs share: is the run fit, which judge does a name stand for, which candidates are
stored. Nothing is played here, and the episodes' texts are not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc

from rised.config import ConfigError, Settings, strict
from rised.config.loader import bind
from rised.config.overlays import apply_overrides, compose
from rised.config.paths import shipped
from rised.config.source import Mapping
from rised.experiment import RunConfig, run_directory
from rised.methods.base import PromptGroup
from rised.records.errors import RecordError
from rised.records.layout import DONE
from rised.records.schemas import from_table
from rised.records.shards import RunReader
from rised.records.types import Rollout, StopReason, Tag
from rised.rubrics.settings import JudgeSettings, RubricSettings
from rised.rubrics.vocabulary import load_vocabulary
from stages.cli import add_method_and_seed
from stages.loop import TRAIN, prompt_groups
from stages.provenance import refuse_other_vocabulary
from stages.setup import refuse_other_run

JUDGES = Path("configs/judges")
RULES = "rules"
JUDGE_KEYS = "rubrics.judge."
"""Overrides of these are a named judge's, all others the run's."""
OUTCOME_COLUMNS = ("rollout_id", "step", "environment", "task_id", "group_id", "rollout_index", "reward",
                   "reward_valid", "success", "stop_reason")  # fmt: skip


class JudgeFile(Settings):
    """What is read of a judge file."""

    rubrics: RubricSettings = strict(description="The judge.")


def load_judge(name: str, overrides: Sequence[str] = ()) -> JudgeSettings:
    """The judge of ``configs/judges/<name>.yaml``, or for ``rules`` the rules themselves; ConfigError if unknown."""
    path = shipped(JUDGES / f"{name}.yaml")
    if name != RULES and not path.is_file():
        known = ", ".join(sorted(p.stem for p in shipped(JUDGES).glob("*.yaml")))
        raise ConfigError(f"there is no judge file {path}: choose one of {RULES}, {known}")
    document = compose([path] if name != RULES else [])
    own = {key: value for key, value in document.items.items() if key == "rubrics"}
    wanted = Mapping(own, {key: document.keys[key] for key in own}, document.origin)
    if name == RULES:
        return RubricSettings().judge
    return bind(JudgeFile, apply_overrides(wanted, overrides)).rubrics.judge


def add_stored_run(parser: argparse.ArgumentParser) -> None:
    """--method, --seed, --run: a run that is there, see :func:`stored_run`."""
    add_method_and_seed(parser)
    parser.add_argument("--run", type=Path, help="run directory (default: in the experiment's results folder)")


def stored_run(options: argparse.Namespace, config: RunConfig) -> Path:
    """Where the run is that the options of :func:`add_stored_run` mean."""
    named: Path | None = options.run
    return named or run_directory(Path("results"), config.experiment, options.method, options.seed)


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of a named judge, and those of the run."""
    of_judge = [text for text in overrides if text.startswith(JUDGE_KEYS)]
    return of_judge, [text for text in overrides if text not in of_judge]


def finished_run(config: RunConfig, run: Path, reads_texts: str = "") -> RunReader:
    """A finished run of this configuration. ``reads_texts``: who needs what was said in its episodes, "" for nobody.

    RecordError for a run that is unfinished, compacted where texts are needed, or of another vocabulary; ConfigError
    if it was made with other strict keys.
    """
    reader = RunReader(run)
    if not reader.done:
        raise RecordError(f"{run} has no {DONE}: start the train stage again to finish it")
    if reads_texts and reader.compacted and "turns" not in reader.columns("rollouts"):
        raise RecordError(
            f"{run} is compacted without texts: {reads_texts} reads what was said, which only the full run has. "
            "Name the full run (--run), or publish runs with --texts"
        )
    refuse_other_run(config, run)
    refuse_other_vocabulary(config, load_vocabulary(Path(config.rubrics.vocabulary)), run)
    return reader


def compared_count(config: RunConfig, candidate_count: int) -> int:
    """How many of a step's candidates selectors choose when they are compared: as many as the run trained on, half of
    them where it trained on all, since all selectors agree then.
    """
    count = min(config.method.selected_groups, candidate_count)
    return count if count < candidate_count else max(1, candidate_count // 2)


class StoredCandidates:
    """The candidate groups of a run's updates, with one judge's tags of them.

    ``tags``: the run directory that holds the tags (the run's own, or one in its ``retags``); ``judge``: their id.
    """

    def __init__(self, run: RunReader, tags: RunReader, judge: str) -> None:
        self.run, self.tags, self.judge = run, tags, judge
        self._whole: tuple[pa.Table, pa.ChunkedArray] | None = None
        if tags.compacted:
            rollouts = run.scan("rollouts", ["rollout_id", "step"])
            table = tags.scan("tags", judge=judge)
            places = pc.index_in(table["rollout_id"], value_set=rollouts["rollout_id"].combine_chunks())
            self._whole = table, rollouts["step"].combine_chunks().take(places)

    def groups(self, step: int) -> tuple[list[PromptGroup], bool]:
        """The groups in the order in which they were drawn, and whether the step has tags at all."""
        table = self.run.scan("rollouts", list(OUTCOME_COLUMNS), steps=[step])
        tags = self._tags(step)
        return prompt_groups([outcome(row) for row in table.to_pylist()], tags), bool(tags)

    def _tags(self, step: int) -> list[Tag]:
        if self._whole is None:
            return from_table(self.tags.scan("tags", steps=[step], judge=self.judge), str(self.tags.path))
        table, step_N = self._whole
        return from_table(table.filter(pc.equal(step_N, step)), str(self.tags.path))


class _NotRead:
    """Stands where a rollout's texts and tokens would be; any use is refused, so that nobody takes it for emptiness."""

    def _refuse(self, *_: object) -> NoReturn:
        raise RecordError("stored candidates are read without texts and tokens: only rewards and tags are there")

    __len__ = __iter__ = __getitem__ = __bool__ = __contains__ = __str__ = _refuse


def outcome(row: dict[str, Any]) -> Rollout:
    """A rollout by what selectors read of it: who it is and how it ended. Texts and tokens are not there."""
    absent = cast(Any, _NotRead())
    return Rollout(
        **row | {"stop_reason": StopReason(row["stop_reason"])},
        run="",
        weight_version=row["step"] - 1,
        split=TRAIN,
        seed=0,
        system_prompt=absent,
        steering_rubrics=absent,
        steering_text=absent,
        steering_text_hash="",
        turns=absent,
        final_observation=absent,
        token_ids=absent,
        policy_mask=absent,
        logprobs=absent,
    )


def steps_with(reader: RunReader, kind: str) -> list[int]:
    """Steps of which the run holds records of a kind that names its step."""
    if reader.compacted:
        return sorted(pc.unique(reader.scan(kind, ["step"])["step"]).to_pylist())
    return [step for step in reader.steps() if reader.shards(kind, [step])]
