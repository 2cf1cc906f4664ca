"""audit_judge: compare a judge with the rule-based detectors on a finished run's training rollouts.

Reads the experiment file, a judge file and a finished run with its full rollouts; writes ``audit/<judge>`` in the run:
a run directory of its own with the judge's tags and raw replies of some updates, spread evenly, and, in its last step,
what they are worth: per environment and rubric precision, recall and kappa with the detectors as truth
(``judge_audits``), and what the errors do to profiles and selections (``selection_audits``). The run itself stays as it
is. What is committed already is not tagged again. No other project measures this, so all of it is ours.

    python -m stages.audit_judge --config configs/experiments/quickstart.yaml --method rised --seed 0 \\
        --judge qwen3_8b --run results/quickstart/rised/seed-0 --set rubrics.judge.endpoint=http://host:8000/v1

Overrides of ``rubrics.judge`` are the audited judge's, all others the run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rised.config import Settings, strict
from rised.config.resolved import dump
from rised.experiment import RunConfig
from rised.methods.base import PromptGroup, Selector
from rised.methods.registry import build, piece_class, piece_settings
from rised.records.commit import RunDirectory
from rised.records.errors import RecordError
from rised.records.layout import AUDIT, DONE
from rised.records.schemas import from_table, to_table
from rised.records.shards import RunReader
from rised.records.types import Rollout, SelectionAudit, Tag
from rised.rubrics.audit import audit
from rised.rubrics.judge_rules import RuleJudge
from rised.rubrics.judges import make_judge
from rised.rubrics.profiles import cosine, rubric_profile
from rised.rubrics.settings import JudgeSettings, LlmJudgeSettings
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary
from stages.cli import run_stage, stage_parser
from stages.loop import prompt_groups
from stages.setup import load_experiment, load_run
from stages.stored import (
    add_stored_run,
    compared_count,
    finished_run,
    load_judge,
    split_overrides,
    steps_with,
    stored_run,
)

COVERED, EVERYTHING = "covered", "all"


class AuditFile(Settings):
    """What an audit was made with; saved beside its tags."""

    judge: JudgeSettings = strict(description="The audited judge.", discriminator="type")
    steps: int = strict(description="Updates that are tagged.")
    run: RunConfig = strict(description="The run.")


def spread(steps: Sequence[int], count: int) -> list[int]:
    """``count`` of the steps, evenly spread, the last one among them; all if there are no more."""
    if len(steps) <= count:
        return list(steps)
    places = np.linspace(0, len(steps) - 1, count + 1)[1:]
    return [steps[round(place)] for place in places]


def selector_of(config: RunConfig, vocabulary: Vocabulary) -> Selector:
    """The run's own selector where it decides by tags, else RISED's with its defaults."""
    settings = config.method.selector
    if not piece_class("selector", settings.type).needs_tags:  # type: ignore[attr-defined]
        settings = piece_settings("selector", {"type": "profile"})
    made: Selector = build("selector", settings, vocabulary=vocabulary)
    return made


def selection_audits(
    config: RunConfig, vocabulary: Vocabulary, rollouts: Sequence[Rollout], truth: Sequence[Tag], judged: Sequence[Tag],
    model: str,
) -> list[SelectionAudit]:  # fmt: skip
    """One step's two rows: by the covered rubrics alone, and by all that the judge tags."""
    step = rollouts[0].step
    covered = {(tag.rollout_id, tag.rubric_id) for tag in truth}
    common = [tag for tag in judged if (tag.rollout_id, tag.rubric_id) in covered]
    by_truth = prompt_groups(rollouts, truth)
    count = compared_count(config, len(by_truth))
    selector = selector_of(config, vocabulary)
    wanted = _selected(selector, by_truth, count, step, config.seed)
    rows = []
    for rubrics, tags in ((COVERED, common), (EVERYTHING, judged)):
        groups = prompt_groups(rollouts, tags)
        found = _selected(selector, groups, count, step, config.seed)
        pairs = [
            (_profile(one, vocabulary), _profile(two, vocabulary)) for one, two in zip(by_truth, groups, strict=True)
        ]
        cosines = [cosine(one, two) for one, two in pairs if one is not None and two is not None]
        rows.append(
            SelectionAudit(
                step=step,
                judge=judged[0].judge,
                model=model,
                rubrics=rubrics,
                groups=len(groups),
                selected=count,
                overlap=len(wanted & found) / count,
                chance_overlap=count / len(groups),
                profile_cosine=float(np.mean(cosines)) if cosines and rubrics == COVERED else None,
                untagged=sum(two is None for _, two in pairs),
            )
        )
    return rows


def _selected(selector: Selector, groups: Sequence[PromptGroup], count: int, step: int, seed: int) -> set[str]:
    return {row.group_id for row in selector.select(groups, count, step, seed) if row.selected}


def _profile(group: PromptGroup, vocabulary: Vocabulary) -> np.ndarray | None:
    return rubric_profile(group.tags, [rollout.rollout_id for rollout in group.rollouts], vocabulary)


def audit_judge(config: RunConfig, run: Path, name: str, settings: JudgeSettings, steps: int) -> None:
    """Tag what is not yet tagged, and compare.

    RecordError or ConfigError for a run that is unfinished, compacted, or was made with another configuration.
    """
    reader = finished_run(config, run, f"the judge {name}")
    chosen = spread(steps_with(reader, "rollouts"), steps)
    if not chosen:
        raise RecordError(f"{run} has no training rollouts")
    vocabulary = load_vocabulary(Path(config.rubrics.vocabulary))
    judge, rules = make_judge(settings, vocabulary), RuleJudge(vocabulary)
    model = settings.model if isinstance(settings, LlmJudgeSettings) else "rules"
    with RunDirectory(run / AUDIT / name) as out:
        out.recover()
        header = reader.header()
        kept = {key: header[key] for key in ("config_hash", "vocabulary_hash")}
        out.write_header({**kept, "judge": judge.judge_id, "detectors": rules.judge_id, "steps": chosen})
        out.write_config(dump(AuditFile(judge=settings, steps=steps, run=config)))
        missing = [step for step in chosen if step not in out.committed_steps()]
        if missing:
            (out.path / DONE).unlink(missing_ok=True)
        for step in missing:
            rollouts = from_table(reader.scan("rollouts", steps=[step]), str(run))
            with out.step(step) as record:
                judged = judge.tag(rollouts)
                record.write("tags", to_table(judged, "tags"), judge=judge.judge_id)
                if judge.record.replies:
                    replies = to_table(judge.record.replies, "judge_replies")
                    record.write("judge_replies", replies, judge=judge.judge_id)
                rows = selection_audits(config, vocabulary, rollouts, rules.tag(rollouts), judged, model)
                record.write("selection_audits", to_table(rows), judge=judge.judge_id)
                if step == chosen[-1]:
                    earlier = [s for s in chosen if s != step]
                    all_rollouts = [*from_table(reader.scan("rollouts", steps=earlier), str(run)), *rollouts]
                    all_tags = [*from_table(RunReader(out.path).scan("tags", steps=earlier), str(run)), *judged]
                    audits = audit(all_rollouts, rules.tag(all_rollouts), all_tags, vocabulary, model, config.seed)
                    record.write("judge_audits", to_table(audits, "judge_audits"), judge=judge.judge_id)
                record.commit()
            print(f"update {step}: {len(rollouts)} rollouts", flush=True)
        out.finish(max(chosen), chosen)


def main() -> None:
    parser = stage_parser("audit_judge", __doc__)
    add_stored_run(parser)
    parser.add_argument("--judge", required=True, help="judge by the name of its file in configs/judges, or `rules`")
    args = parser.parse_args()
    of_judge, of_run = split_overrides(args.set)
    config = load_run(args.config, args.method, args.seed, of_run)
    steps = load_experiment(args.config, of_run).audit.steps
    settings = load_judge(args.judge, of_judge)
    run = stored_run(args, config)
    if args.dry_run:
        print(f"# plan: the judge {args.judge} beside the detectors on {steps} updates of {run}")
        return
    audit_judge(config, run, args.judge, settings, steps)


if __name__ == "__main__":
    run_stage(main)
