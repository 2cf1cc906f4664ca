"""retag: tag a finished run's stored rollouts again, by another judge or by the same one; nothing is played.

With --judge: reads the experiment file, a judge file and a finished run; writes ``retags/<judge>`` in the run: a run
directory of its own with the judge's tags and raw replies of all training rollouts, and of the validations where the
run's own are tagged. The run's tags and selections stay as they are; `stages.select` selects by either.

Without: writes ``second_tags``, the tags of a second pass of the run's own judge, to see what of a table is the
tagger's (RISED Table 8): of the validations after the baseline and the training rollouts of the updates before each. A
judge by rules gives the same tags twice; a judge by a language model need not.

What is committed already is not tagged again.

    python -m stages.retag --config configs/experiments/webshop_only.yaml --method grpo_64 --seed 0 \\
        --judge qwen3_8b --set rubrics.judge.endpoint=http://host:8000/v1

Overrides of ``rubrics.judge`` are the named judge's, all others the run's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rised.config import ConfigError, Settings, strict
from rised.config.resolved import dump
from rised.experiment import RunConfig
from rised.records.commit import RunDirectory
from rised.records.errors import RecordError
from rised.records.layout import DONE, HEADER, RETAGS, SECOND_TAGS
from rised.records.schemas import from_table, to_table
from rised.records.shards import RunReader
from rised.rubrics.base import Judge
from rised.rubrics.judges import make_judge
from rised.rubrics.settings import JudgeSettings, LlmJudgeSettings
from rised.rubrics.vocabulary import load_vocabulary
from stages.cli import run_stage, stage_parser
from stages.loop import VALIDATION
from stages.setup import load_run
from stages.stored import add_stored_run, finished_run, load_judge, split_overrides, steps_with, stored_run

KINDS = {"rollouts": "tags", VALIDATION: "validation_tags"}
"""Kind of rollouts -> kind of their tags."""
Needed = Mapping[int, tuple[str, ...]]
"""Step -> kinds of rollouts to tag."""


class RetagFile(Settings):
    """What further tags were made with; saved beside them."""

    judge: JudgeSettings = strict(description="The judge.", discriminator="type")
    run: RunConfig = strict(description="The run.")


def steps_to_tag(reader: RunReader, window: int) -> dict[int, tuple[str, ...]]:
    """Step -> kinds of rollouts whose tags the correlations rest on.

    Evaluations after the first one that follows the start, and the training rollouts of the ``window`` updates up to
    each. RecordError if there is no such evaluation.
    """
    evaluated = [step for step in reader.steps() if step > 0 and reader.shards(VALIDATION, [step])]
    if len(evaluated) < 2:
        raise RecordError(
            f"{reader.path} has {len(evaluated)} evaluations after its start: there is nothing to compare"
        )
    needed: dict[int, set[str]] = {}
    for checkpoint in evaluated[1:]:
        needed.setdefault(checkpoint, set()).add(VALIDATION)
        for step in range(max(1, checkpoint - window + 1), checkpoint + 1):
            needed.setdefault(step, set()).add("rollouts")
    return {step: tuple(kind for kind in KINDS if kind in needed[step]) for step in sorted(needed)}


def all_steps(reader: RunReader, validation: bool) -> dict[int, tuple[str, ...]]:
    """Step -> kinds of rollouts, for all that the run holds; ``validation``: its evaluations, too."""
    held = {kind: set(steps_with(reader, kind)) for kind in KINDS if validation or kind != VALIDATION}
    found = {step: tuple(kind for kind in held if step in held[kind]) for step in reader.steps()}
    return {step: kinds for step, kinds in found.items() if kinds}


def asked_anew(settings: JudgeSettings) -> JudgeSettings:
    """The judge without its cache, from which the second pass would be the first."""
    return settings.model_copy(update={"cache": None}) if isinstance(settings, LlmJudgeSettings) else settings


def retag(config: RunConfig, run: Path) -> None:
    """The second pass: tag again what is not yet.

    RecordError or ConfigError for a run that is unfinished, untagged or without texts, or was made with another
    configuration.
    """
    if not config.validation.tags:
        raise ConfigError(
            "validation.tags is false: this run's validation was not tagged once, so there is no second time"
        )
    reader = finished_run(config, run, "a second pass of the judge")
    judge = make_judge(asked_anew(config.rubrics.judge), load_vocabulary(Path(config.rubrics.vocabulary)))
    needed = steps_to_tag(reader, config.rubrics.window_steps)
    _tag(reader, needed, run / SECOND_TAGS, judge, dump(config))


def retag_by(config: RunConfig, run: Path, name: str, settings: JudgeSettings) -> None:
    """Tags of the judge ``name`` beside the run's own; what it has tagged already is not tagged again.

    RecordError or ConfigError for a run that is unfinished or without texts, or was made with another configuration.
    """
    reader = finished_run(config, run, f"the judge {name}")
    needed = all_steps(reader, config.validation.tags)
    if not needed:
        raise RecordError(f"{run} has no training rollouts")
    judge = make_judge(settings, load_vocabulary(Path(config.rubrics.vocabulary)))
    _tag(reader, needed, run / RETAGS / name, judge, dump(RetagFile(judge=settings, run=config)))


def _tag(reader: RunReader, needed: Needed, folder: Path, judge: Judge, saved: str) -> None:
    """Commit the tags of each step that is not there yet. ``saved``: the configuration to keep beside them."""
    with RunDirectory(folder) as out:
        out.recover()
        refuse_other_judge(folder, judge)
        header = reader.header()
        kept: dict[str, Any] = {key: header[key] for key in ("config_hash", "vocabulary_hash")}
        out.write_header({**kept, "judge": judge.judge_id})
        out.write_config(saved)
        missing = [step for step in needed if step not in out.committed_steps()]
        if missing:
            (out.path / DONE).unlink(missing_ok=True)
        for step in missing:
            with out.step(step) as record:
                for kind in needed[step]:
                    tags = judge.tag(from_table(reader.scan(kind, steps=[step]), str(reader.path)))
                    record.write(KINDS[kind], to_table(tags, "tags"), judge=judge.judge_id)
                    if judge.record.replies:
                        replies = to_table(judge.record.replies, "judge_replies")
                        record.write("judge_replies", replies, judge=judge.judge_id)
                record.commit()
            print(f"step {step}: {', '.join(needed[step])}", flush=True)
        out.finish(max(needed), list(needed))


def refuse_other_judge(folder: Path, judge: Judge) -> None:
    """RecordError where ``folder`` holds tags of a judge of the same name with another id."""
    if not (folder / HEADER).is_file():
        return
    found = RunReader(folder).header().get("judge")
    if found != judge.judge_id:
        raise RecordError(
            f"{folder} holds tags of {found}, asked for is {judge.judge_id}: tags of two judges are not mixed. Remove "
            "the folder to tag anew, or give the changed judge a file and name of its own"
        )


def main() -> None:
    parser = stage_parser("retag", __doc__)
    add_stored_run(parser)
    parser.add_argument("--judge", help="another judge by the name of its file in configs/judges, or `rules`")
    args = parser.parse_args()
    of_judge, of_run = split_overrides(args.set) if args.judge else ([], args.set)
    config = load_run(args.config, args.method, args.seed, of_run)
    run = stored_run(args, config)
    settings = load_judge(args.judge, of_judge) if args.judge else None
    if args.dry_run:
        print(f"# plan: the tags of {run} " + (f"by {args.judge}" if args.judge else "a second time"))
    elif settings is None:
        retag(config, run)
    else:
        retag_by(config, run, args.judge, settings)


if __name__ == "__main__":
    run_stage(main)
