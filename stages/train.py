"""train: one run, one method and seed, from the warm start to the last update.

Reads the experiment file, tasks.parquet, the warm start's validation; writes the run directory: for each update the
shards of rollouts, tags, selections, metrics and timings, validation every N updates, and a state to resume from. A
run that was stopped at any moment goes on from its last committed step with the same command. SIGUSR2 asks it to stop
after the current step (exit code 75), so that nothing has to be repeated.

    python -m stages.train --config configs/experiments/quickstart.yaml --tasks results/quickstart/tasks.parquet \\
        --warm-start results/quickstart/warm_start --method rised --seed 0 --out results/quickstart/rised/seed-0
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rised.config.paths import check_results_path
from rised.config.resolved import dump
from rised.environments.base import Task
from rised.experiment import RunConfig, run_directory
from rised.methods.composition import Method
from rised.records.commit import RunDirectory, Step
from rised.records.errors import RecordError
from rised.records.layout import DONE, HEADER
from rised.records.schemas import from_table, to_table
from rised.records.shards import RunReader
from rised.records.types import Metric, Rollout, Tag, Timing
from rised.rollouts.rules import refuse_long_prompts
from rised.rubrics.judge_record import JudgeRecord
from rised.rubrics.judges import make_judge
from rised.rubrics.vocabulary import load_vocabulary
from rised.rubrics.windows import TagWindow
from stages.agreement import AgreementAlarm
from stages.attempts import STOPPED, AttemptLog
from stages.cli import add_method_and_seed, run_stage, stage_parser
from stages.desk import TrainingDesk, bundle_metrics
from stages.loop import (
    TRAIN,
    VALIDATION,
    probes,
    prompt_groups,
    rollout_metrics,
    tag_metrics,
    token_limit_warnings,
    validation_metrics,
    validation_plans,
    validation_rollout,
)
from stages.pipeline import Episodes, Schedule, played_file
from stages.progress import RunProgress
from stages.provenance import (
    code_hash,
    refuse_other_basis,
    refuse_other_inputs,
    refuse_other_vocabulary,
    run_header,
    validation_basis,
)
from stages.ranks import Ranks
from stages.saving import LOOP, check_space, copy_state, parameter_count
from stages.setup import load_run, panel, read_tasks, refuse_other_run, refuse_untaggable
from stages.step_times import step_parts, step_timings
from stages.tagging import play_and_tag
from stages.workers import WorkerGroup


class Trainer:
    """What the driver of a run holds as long as it lives: worker group, judge, method, and what resumes them."""

    def __init__(
        self, config: RunConfig, tasks: Sequence[Task], run: RunDirectory, workers: WorkerGroup, method: Method
    ) -> None:
        self.config, self.run, self.workers, self.method = config, run, workers, method
        self.run_name = f"{config.experiment}/{config.method.name}/seed-{config.seed}"
        self.vocabulary = load_vocabulary(Path(config.rubrics.vocabulary))
        self.judge = make_judge(config.rubrics.judge, self.vocabulary)
        train_panels = {name: panel(tasks, name, TRAIN) for name in config.trained_on}
        self.validation_panels = {name: panel(tasks, name, VALIDATION) for name in config.environments}
        self.schedule = Schedule(config, self.run_name, train_panels, self.vocabulary, method.candidate_count())
        judge = self.judge if config.rubrics.tag_training == "always" or method.needs_tags else None
        self.episodes = Episodes(config, workers, judge, self.schedule, method.asks_policy)
        self.desk = TrainingDesk(workers, config.rubrics.judge)
        self.alarm = AgreementAlarm(config.agreement)
        self.code = code_hash()
        self.window = TagWindow(config.rubrics.window_steps)
        self._unshown: tuple[int, list[Metric], dict[str, float]] | None = None

    def resume(self) -> int:
        """Take over the state of the last committed step and return the next step (0 for a new run)."""
        last = self.run.last_committed()
        if last is None:
            return 0
        state = json.loads(self.run.state_file(LOOP).read_text())
        older = self.episodes.lag > 0 and last > 0
        if older:
            self.episodes.resume(last, lambda updates: self.run.state_file(played_file(updates)))
        self.workers.load_state(self.run.state_file(LOOP).parent, hand_over=not older)
        self.method.load_state(state["method"])
        self.window = TagWindow.from_json(state["window"])
        self.schedule.load_state(state, last)
        return last + 1

    def refuse_long_prompts(self) -> None:
        """ConfigError, before anything is generated, if an environment's prompts leave no room for a reply."""
        chosen = probes(self.schedule.panels, self.validation_panels)
        refuse_long_prompts(self.workers.prompt_tokens(chosen), self.config.rollout)

    def _warn_of_token_limit(self, number: int, split: str, rollouts: Sequence[Rollout]) -> None:
        for warning in token_limit_warnings(rollouts, self.config.rollout.max_episode_tokens):
            print(f"warning: step {number}, {split}: {warning}", file=sys.stderr, flush=True)

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, beside the learner's."""
        return {"method": self.method.state(), "window": self.window.to_json(), **self.schedule.state()}

    def copy_state(self, step: Step, export: bool = False) -> Callable[[], None]:
        """See :func:`stages.saving.copy_state`."""
        lag = self.episodes.lag
        return copy_state(self.run, self.workers, step, self.state(), lag=lag, export=export)

    def update(self, number: int, progress: RunProgress, goes_on: Callable[[], bool]) -> None:
        """One update, its commit begun: collect, tag, select, study, learn, steer, and validate when it is due.

        ``goes_on``: whether the run is not to stop after this step.
        """
        config, started = self.config, time.perf_counter()

        def more(step: int) -> bool:
            return step <= config.updates and goes_on()

        with self.run.step(number) as step:
            batch = self.episodes.batch(number, progress.phase, more)
            rollouts, tags, judged = batch.rollouts, batch.tags, batch.judged
            step.expect("rollouts", batch.planned)
            self._warn_of_token_limit(number, TRAIN, rollouts)
            groups = self.method.rewarded(prompt_groups(rollouts, tags))
            selections = self.method.select(groups, number, config.seed)
            chosen = {s.group_id: s.order for s in selections if s.selected}
            selected = sorted((g for g in groups if g.group_id in chosen), key=lambda g: chosen[g.group_id] or 0)
            self.window.push(number, rollouts, tags)
            study_started = time.perf_counter()
            bundles = self.method.study(selected, self.desk, number, config.seed)
            study_s = time.perf_counter() - study_started
            self.episodes.look_ahead(number, more)
            self.run.check()
            rendering = self.workers.policy.rendering
            sequences = self.method.training_sequences(selected, self.window, rendering, config.block_style)
            progress.phase("update")
            report = self.workers.update(sequences, hand_over=self.episodes.lag == 0)
            self.schedule.advance(self.method.steering_for_next_step(self.window))
            metrics = rollout_metrics(rollouts, tags, number) + judged.metrics(number)
            metrics += self.method.reward_metrics(number, groups)
            metrics += self.method.metrics(number, selected, sequences) + report.records(number)
            metrics += self.alarm.hear(number, number - 1 - rollouts[0].weight_version, report)
            metrics += bundle_metrics(number, bundles) + self.desk.metrics(number)
            step.write("rollouts", to_table(rollouts, "rollouts"))
            if tags:
                step.write("tags", to_table(tags, "tags"), judge=self.judge.judge_id)
            self._write_replies(step, judged)
            step.write("selections", to_table(selections, "selections"))
            if bundles:
                step.write("rubric_bundles", to_table(bundles, "rubric_bundles"))
            parts = step_parts(time.perf_counter() - started + batch.waited_before_s, batch, report.timings)
            if number % config.validation.every == 0 or number == config.updates:
                metrics += self._validate(number, step, progress)
            saving_started = time.perf_counter()
            self.settle(progress)
            settled = time.perf_counter()
            exported = number == config.updates or (config.export_every and number % config.export_every == 0)
            write_state = self.copy_state(step, export=bool(exported))
            saving = {"wait": settled - saving_started, "copy": time.perf_counter() - settled}
            step.write("metrics", to_table(metrics, "metrics"))
            timings = step_timings(number, parts, batch.timings, saving, self.workers.ranks.layout.size)
            timings += judged.timings(number, self.judge.judge_id)
            if bundles:
                timings += [Timing(number, "bundles/study", study_s, "s"), *self.desk.timings(number)]
            step.write("timings", to_table(timings, "timings"))
            step.commit_later(write_state, {"code": self.code} | self._several_processes())
            self._unshown = (number, metrics, parts)
        if not config.pipeline.defer_saving:
            self.settle(progress)

    def settle(self, progress: RunProgress) -> None:
        """Wait for the step that is still being written, and show it. Raises what kept it from being committed."""
        self.run.settle()
        if self._unshown is not None:
            progress.step(*self._unshown)
            self._unshown = None

    def start(self, warm_start: Path, tasks: Sequence[Task]) -> list[Metric]:
        """Commit step 0: the validation of the policy that the run starts from, measured once for the experiment.

        ConfigError or RecordError if it was measured on another policy, with other settings, tasks or draws.
        """
        measured = RunReader(warm_start)
        table = measured.scan(VALIDATION)
        basis = measured.manifest(0).extra.get("basis", {})
        mend = "evaluate the warm start again (python -m stages.evaluate ... --again)"
        refuse_other_basis(basis, validation_basis(self.config, tasks), warm_start, mend)
        rollouts: list[Rollout] = from_table(table, str(warm_start))
        planned = validation_plans(self.config, self.validation_panels, 0, self.run_name)
        if [(r.rollout_id, r.seed) for r in rollouts] != [(plan.rollout_id, plan.seed) for plan in planned]:
            raise RecordError(
                f"{warm_start} validates other tasks or draws than this run does: evaluate the warm start again "
                "(python -m stages.evaluate ... --again)"
            )
        metrics = validation_metrics(rollouts, 0)
        tags = self.judge.tag(rollouts) if self.config.validation.tags else []
        with self.run.step(0, expected={VALIDATION: len(rollouts)}) as step:
            step.write(VALIDATION, to_table(rollouts, "rollouts"))
            metrics += self._write_validation_tags(step, tags, self.judge.record)
            step.write("metrics", to_table(metrics, "metrics"))
            step.commit_later(self.copy_state(step))
        self.run.settle()
        return metrics

    def _several_processes(self) -> dict[str, int]:
        """How many learned: the last bits of a step follow from it."""
        count = len(self.workers.ranks.layout.learners)
        return {"learner_ranks": count} if count > 1 else {}

    def _validate(self, number: int, step: Step, progress: RunProgress) -> list[Metric]:
        """With the weights of this step's update: training episodes that are being played come to their end first."""
        progress.phase("validation")
        self.episodes.rest()
        plans = validation_plans(self.config, self.validation_panels, number, self.run_name)
        step.expect(VALIDATION, len(plans))
        judge = self.judge if self.config.validation.tags else None
        batch = play_and_tag(
            self.workers, judge, plans, validation_rollout(self.config), lambda _: progress.phase("validation")
        )
        step.write(VALIDATION, to_table(batch.rollouts, "rollouts"))
        self._warn_of_token_limit(number, VALIDATION, batch.rollouts)
        metrics = validation_metrics(batch.rollouts, number)
        return metrics + self._write_validation_tags(step, batch.tags, batch.judged)

    def _write_validation_tags(self, step: Step, tags: Sequence[Tag], judged: JudgeRecord) -> list[Metric]:
        """Of a configuration that asks for them; nothing of the run depends on them."""
        if not self.config.validation.tags:
            return []
        if tags:
            step.write("validation_tags", to_table(tags, "tags"), judge=self.judge.judge_id)
        self._write_replies(step, judged)
        return tag_metrics("validation_tags", tags, step.number)

    def _write_replies(self, step: Step, judged: JudgeRecord) -> None:
        """What the judge said word for word, if it is one that speaks."""
        if judged.replies:
            step.write("judge_replies", to_table(judged.replies, "judge_replies"), self.judge.judge_id)


def prepare_run(run: RunDirectory, trainer: Trainer, tasks: Sequence[Task], prompts: Mapping[str, str]) -> None:
    """Save the configuration and the header, or check that a resumed run still has the same."""
    config = trainer.config
    refuse_other_vocabulary(config, trainer.vocabulary, run.path)
    run.write_header(run_header(config, tasks, trainer.vocabulary, trainer.judge.judge_id, prompts))
    run.write_config(dump(config))


def train(config: RunConfig, tasks: Sequence[Task], warm_start: Path, out: Path) -> None:
    """Run to the last update, or return at once when that is committed already.

    In a job of several processes each calls this; only the first one touches ``out``.
    """
    with Ranks.of_job(config.placement.rollout_nodes) as ranks:
        method = Method.from_settings(config.method, load_vocabulary(Path(config.rubrics.vocabulary)))
        if ranks.drives:
            drive(config, tasks, warm_start, out, ranks, method)
        else:
            with WorkerGroup(config, ranks, method.loss_terms()) as workers:
                workers.follow()


def drive(config: RunConfig, tasks: Sequence[Task], warm_start: Path, out: Path, ranks: Ranks, method: Method) -> None:
    """The first process's part: decide, record, and lead the others."""
    with RunDirectory(out, config.keep_states, config.keep_exports) as run:
        if run.last_committed() is None:
            (out / HEADER).unlink(missing_ok=True)  # of a start that came to nothing: no result depends on it
        else:
            refuse_other_run(config, out)
        recovered = run.recover()
        if recovered.removed:
            print(f"removed {len(recovered.removed)} leftovers of an interrupted step", flush=True)
        last = run.last_committed()
        if last is not None and last >= config.updates:
            refuse_other_inputs(config, tasks, load_vocabulary(Path(config.rubrics.vocabulary)), out)
            run.finish(last)
            return
        (out / DONE).unlink(missing_ok=True)
        with WorkerGroup(config, ranks, method.loss_terms()) as workers:
            trainer = Trainer(config, tasks, run, workers, method)
            trainer.refuse_long_prompts()
            prepare_run(run, trainer, tasks, workers.system_prompts() | method.prompts())
            first = trainer.resume()
            check_space(config, out, parameter_count(workers.learner.model), first)
            attempts = AttemptLog(out)
            attempts.begin(first)
            with RunProgress(trainer.run_name, out, config.updates, max(0, first - 1)) as progress:
                if first == 0:
                    progress.step(0, trainer.start(warm_start, tasks), {})
                    workers.hand_over()  # as a restart does: a learner may round its weights
                for number in range(max(1, first), config.updates + 1):
                    trainer.update(number, progress, lambda: not attempts.stop_asked)
                    if attempts.stop_asked and number < config.updates:
                        trainer.settle(progress)
                        attempts.end("stopped", number)
                        print(f"stopped after step {number} as asked; the same command goes on", flush=True)
                        sys.exit(STOPPED)
                trainer.settle(progress)
        run.finish(config.updates)
        attempts.end("finished", config.updates)


def main() -> None:
    parser = stage_parser("train", __doc__)
    add_method_and_seed(parser)
    parser.add_argument("--tasks", type=Path, help="tasks.parquet (default: in the experiment's results folder)")
    parser.add_argument("--warm-start", type=Path, help="folder of the warm start's validation (default: likewise)")
    parser.add_argument("--out", type=Path, help="run directory (default: likewise)")
    args = parser.parse_args()
    config = load_run(args.config, args.method, args.seed, args.set)
    refuse_untaggable(config)
    folder = Path("results") / config.experiment
    tasks_path = args.tasks or folder / "tasks.parquet"
    warm_start = args.warm_start or folder / "warm_start"
    out = check_results_path(args.out or run_directory(Path("results"), config.experiment, args.method, args.seed))
    if args.dry_run:
        print(dump(config))
        print(
            f"# plan: {config.updates} updates of {config.method.candidate_groups} candidate groups "
            f"x {config.rollouts_per_group} rollouts, {config.method.selected_groups} groups trained on, "
            f"validation every {config.validation.every} updates; writes {out}"
        )
        return
    train(config, read_tasks(tasks_path), warm_start, out)


if __name__ == "__main__":
    run_stage(main)
