"""retag: tag a finished run's rollouts a second time, to see what of a table is the tagger's (RISED Table 8).

Reads the experiment file and a run whose validation is tagged; writes ``second_tags`` in the run: a run directory of
its own with the tags of a second pass of the same judge over the stored rollouts that the correlations rest on, which
are the validations after the baseline and the training rollouts of the updates before each. The first tags stay as they
are. What is committed already is not tagged again. A judge by rules gives the same tags twice; a judge by a language
model need not.

    python -m stages.retag --config configs/experiments/webshop_only.yaml --method grpo_64 --seed 0 \\
        --run results/webshop_only/grpo_64/seed-0
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rised.config import ConfigError
from rised.config.resolved import dump
from rised.experiment import RunConfig, run_directory
from rised.records.commit import RunDirectory
from rised.records.errors import RecordError
from rised.records.layout import DONE, SECOND_TAGS
from rised.records.schemas import from_table, to_table
from rised.records.shards import RunReader
from rised.rubrics.judges import make_judge
from rised.rubrics.settings import JudgeSettings, LlmJudgeSettings
from rised.rubrics.vocabulary import load_vocabulary
from stages.cli import add_common, run_stage
from stages.loop import VALIDATION
from stages.setup import load_run
from stages.train import refuse_other_run

KINDS = {"rollouts": "tags", VALIDATION: "validation_tags"}
"""Kind of rollouts -> kind of their tags."""


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


def asked_anew(settings: JudgeSettings) -> JudgeSettings:
    """The judge without its cache, from which the second pass would be the first."""
    return settings.model_copy(update={"cache": None}) if isinstance(settings, LlmJudgeSettings) else settings


def retag(config: RunConfig, run: Path) -> None:
    """Tag again what is not yet.

    RecordError or ConfigError for a run that is unfinished or untagged, or was made with another configuration.
    """
    reader = RunReader(run)
    if not reader.done:
        raise RecordError(f"{run} has no {DONE}: start the train stage again to finish it")
    if not config.validation.tags:
        raise ConfigError(
            "validation.tags is false: this run's validation was not tagged once, so there is no second time"
        )
    refuse_other_run(config, run)
    judge = make_judge(asked_anew(config.rubrics.judge), load_vocabulary(Path(config.rubrics.vocabulary)))
    needed = steps_to_tag(reader, config.rubrics.window_steps)
    with RunDirectory(run / SECOND_TAGS) as out:
        out.recover()
        header = reader.header()
        kept = {key: header[key] for key in ("config_hash", "vocabulary_hash")}
        out.write_header({**kept, "judge": judge.judge_id})
        out.write_config(dump(config))
        missing = [step for step in needed if step not in out.committed_steps()]
        if missing:
            (out.path / DONE).unlink(missing_ok=True)
        for step in missing:
            with out.step(step) as record:
                for kind in needed[step]:
                    tags = judge.tag(from_table(reader.scan(kind, steps=[step]), str(run)))
                    record.write(KINDS[kind], to_table(tags, "tags"), judge=judge.judge_id)
                    if judge.record.replies:
                        replies = to_table(judge.record.replies, "judge_replies")
                        record.write("judge_replies", replies, judge=judge.judge_id)
                record.commit()
            print(f"step {step}: {', '.join(needed[step])}", flush=True)
        out.finish(max(needed), list(needed))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.retag", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser)
    parser.add_argument("--method", required=True, help="method of the experiment (file of configs/methods)")
    parser.add_argument("--seed", type=int, required=True, help="run seed")
    parser.add_argument("--run", type=Path, help="run directory (default: in the experiment's results folder)")
    args = parser.parse_args()
    config = load_run(args.config, args.method, args.seed, args.set)
    run = args.run or run_directory(Path("results"), config.experiment, args.method, args.seed)
    if args.dry_run:
        print(f"# plan: the tags of {run} a second time")
        return
    retag(config, run)


if __name__ == "__main__":
    run_stage(main)
