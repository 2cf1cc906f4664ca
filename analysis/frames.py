"""Tidy data frames of an experiment: pass rates, outcomes per task, step times, rubric counts.

Every frame has the columns ``method`` and ``seed``; a run that lacks something has no rows for it, and nothing is
filled in. Comparing runs over different task panels is refused here, once, for all tables and figures. A pass rate is
counted in the validation episodes where they are stored, and read from the metrics elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis import AnalysisError
from analysis.episodes import check_episodes
from analysis.names import environment_name, ordered_environments
from analysis.panels import check_panels
from analysis.runs import Experiment, Run
from analysis.sources import note_records
from rised.records.tag_counts import OUTCOMES, read_tag_counts
from rised.statistics.pass_rates import LOWEST_COVERAGE, mean_over_tasks, strict, task_means

SUCCESS = "validation/success/"
TASKS = "validation/tasks/"
KEYS = ["method", "seed", "step", "environment"]
EPISODE_COLUMNS = [
    "run",
    "step",
    "environment",
    "task_id",
    "rollout_index",
    "rollout_id",
    "success",
    "reward",
    "reward_valid",
    "stop_reason",
    "turn_count",
    "token_count",
]


class Frames:
    """Lazily loaded frames of one experiment, on one checked task panel."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        check_panels(experiment)
        self._counts: dict[tuple[Run, str], pd.DataFrame] = {}
        self.measured: dict[tuple[object, ...], Any] = {}
        """What modules computed from these frames and share, by a key that begins with the module's name."""

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Columns method, seed, step, name, value (NaN = undefined), unit."""
        return self._collect(lambda run: run.reader.scan("metrics"))

    @cached_property
    def timings(self) -> pd.DataFrame:
        """Step-level times: columns method, seed, step, name, value, unit."""
        whole_step = pc.field("subject") == ""
        return self._collect(lambda run: run.reader.scan("timings", ["step", "name", "value", "unit"], whole_step))

    @cached_property
    def validation(self) -> pd.DataFrame:
        """One row per validation rollout, texts and tokens left out; step 0 is the warm start.

        ``outcome`` is 1.0 for a success, 0.0 for a failure and NaN where the environment lost the episode.
        """

        def load(run: Run) -> pa.Table:
            table = run.reader.scan("validation", EPISODE_COLUMNS)
            check_episodes(run, "validation", table)
            return table.drop_columns(["run", "reward"])

        rows = self._collect(load)
        return rows.assign(outcome=rows["success"].map({True: 1.0, False: 0.0}).astype("float64"))

    @cached_property
    def played_tasks(self) -> pd.DataFrame:
        """The tasks of the training rollouts, each once a run: columns method, seed, environment, task_id."""
        keys = ["environment", "task_id"]
        return self._collect(lambda run: run.reader.scan("rollouts", keys).group_by(keys).aggregate([]))

    @cached_property
    def episode_counts(self) -> pd.DataFrame:
        """Training rollouts counted in Arrow: columns method, seed, stop_reason, reward_valid, success, count.

        A frame with a row for each takes gigabytes at the paper's size.
        """
        keys = ["stop_reason", "reward_valid", "success"]

        def load(run: Run) -> pa.Table:
            episodes = run.reader.scan("rollouts", ["run", "step", "rollout_id", "reward", *keys])
            check_episodes(run, "rollouts", episodes)
            counted = episodes.group_by(keys).aggregate([([], "count_all")])
            return counted.rename_columns([*keys, "count"])

        return self._collect(load)

    @cached_property
    def stored_rates(self) -> pd.DataFrame:
        """Pass rates as the runs' metrics have them: columns method, seed, step, environment, pass_rate, tasks."""
        names = self.metrics["name"]
        rows = self.metrics[names.str.startswith(SUCCESS) & (names != SUCCESS + "overall")]
        rows = rows.assign(environment=rows["name"].str.removeprefix(SUCCESS), pass_rate=rows["value"])
        counts = self.metrics[names.str.startswith(TASKS)]
        counts = counts.assign(environment=counts["name"].str.removeprefix(TASKS), tasks=counts["value"])
        return rows[[*KEYS, "pass_rate"]].merge(counts[[*KEYS, "tasks"]], on=KEYS, how="left")

    @cached_property
    def counted_rates(self) -> pd.DataFrame:
        """Pass rates counted in the validation episodes: the columns of ``stored_rates``, and valid, planned, strict.

        ``planned``: all episodes; ``valid``: those that the environment did not lose; ``strict``: the pass rate with
        lost episodes as failures.
        """
        found = []
        for key, block in self.validation.groupby(KEYS, sort=False):
            values = outcomes_of(block)
            rate, low = mean_over_tasks(values), mean_over_tasks(strict(values))
            valid = int(block["outcome"].notna().sum())
            found.append((*key, rate, float(block["task_id"].nunique()), valid, len(block), low))
        columns = [*KEYS, "pass_rate", "tasks", "valid", "planned", "strict"]
        return pd.DataFrame(found, columns=columns).astype({"pass_rate": "float64", "strict": "float64"})

    @cached_property
    def pass_rates(self) -> pd.DataFrame:
        """Validation pass rates: columns method, seed, step, environment (and overall), pass_rate, tasks.

        Counted where episodes are stored, else as stored; NaN where every episode was lost. Overall is the unweighted
        mean of the experiment's environments, and absent at a step that lacks the rate of one of them.
        """
        counted, stored = self.counted_rates, self.stored_rates
        here = pd.MultiIndex.from_frame(counted[KEYS])
        rest = stored[~pd.MultiIndex.from_frame(stored[KEYS]).isin(here)]
        parts = [part for part in (counted[[*KEYS, "pass_rate", "tasks"]], rest) if len(part)]
        rates = pd.concat(parts or [stored], ignore_index=True)
        order = {(run.method, run.seed): place for place, run in enumerate(self.experiment.runs)}
        places = [order[method, seed] for method, seed in zip(rates["method"], rates["seed"], strict=True)]
        rates = rates.iloc[np.lexsort((rates["step"], places))].reset_index(drop=True)
        environments = rates["environment"].nunique()
        grouped = rates.groupby(["method", "seed", "step"], as_index=False).agg(
            pass_rate=("pass_rate", "mean"), tasks=("tasks", lambda s: s.sum(min_count=1)), n=("pass_rate", "count")
        )
        whole = grouped[grouped["n"] == environments].drop(columns="n").assign(environment="overall")
        return pd.concat([rates, whole], ignore_index=True)[[*KEYS, "pass_rate", "tasks"]]

    @property
    def environments(self) -> list[str]:
        """Environments with validation results, without "overall"."""
        return [e for e in ordered_environments(self.pass_rates["environment"].unique()) if e != "overall"]

    @cached_property
    def final_step(self) -> int | None:
        """The last evaluated step of the finished runs (the longest, should they differ); None if none is finished."""
        steps = [
            step for run in self.experiment.runs if run.complete and (step := self.last_evaluated(run)) is not None
        ]
        return max(steps, default=None)

    def last_evaluated(self, run: Run) -> int | None:
        """The last step at which a run was evaluated, whether or not every environment gave a rate."""
        steps = self.pass_rates.loc[_is(self.pass_rates, run), "step"]
        return None if steps.empty else int(steps.max())

    def final_runs(self, method: str) -> list[Run]:
        """The finished runs of a method last evaluated at the experiment's final step: all that a mean may hold."""
        return [
            run for run in self.experiment.of(method) if run.complete and self.last_evaluated(run) == self.final_step
        ]

    def left_out(self) -> list[str]:
        """One sentence per run that is not in the final means, and why, and per final rate that stands for too few
        episodes."""
        ended = [
            f"{run.label}: last evaluated at update {self.last_evaluated(run)}, others at {self.final_step}"
            for run in self.experiment.runs
            if run.complete and self.last_evaluated(run) != self.final_step
        ]
        sentences = [f"{gap}; not in the means of final results" for gap in self.experiment.gaps() + ended]
        return sentences + self._thin_coverage()

    def _thin_coverage(self) -> list[str]:
        """One sentence per final run and environment with fewer than 98% valid episodes, or without a rate."""
        step, texts = self.final_step, []
        if step is None:
            return []
        for run in [run for method in self.experiment.methods for run in self.final_runs(method)]:
            for environment in self.environments:
                rate, found = self.rate(run, step, environment), self.coverage(run, environment)
                place = f"{run.label}, {environment_name(environment)} at update {step}"
                if found is None:
                    texts += [f"{place}: no pass rate, so that overall is missing too"] if np.isnan(rate) else []
                elif np.isnan(rate):
                    texts.append(f"{place}: none of {found['planned']:,} episodes is valid; overall is missing too")
                elif found["valid"] < LOWEST_COVERAGE * found["planned"]:
                    texts.append(
                        f"{place}: {found['valid']:,} of {found['planned']:,} episodes are valid; with the lost ones "
                        f"as failures {found['strict']:.3f} instead of {rate:.3f}"
                    )
        return texts

    def coverage(self, run: Run, environment: str) -> dict[str, Any] | None:
        """``valid``, ``planned`` and ``strict`` (see ``counted_rates``) of a run's last evaluation of an environment;
        None without stored episodes."""
        rows = self.counted_rates
        step = self.last_evaluated(run)
        found = rows[_is(rows, run) & (rows["step"] == step) & (rows["environment"] == environment)]
        if found.empty:
            return None
        row = found.iloc[0]
        return {"valid": int(row["valid"]), "planned": int(row["planned"]), "strict": float(row["strict"])}

    def rate(self, run: Run, step: int, environment: str) -> float:
        """One pass rate; NaN if it was not measured."""
        rates = self.pass_rates
        found = rates.loc[
            _is(rates, run) & (rates["step"] == step) & (rates["environment"] == environment), "pass_rate"
        ]
        return float(found.iloc[0]) if len(found) else float("nan")

    def outcomes(self, method: str, step: int | None = None) -> dict[str, np.ndarray] | None:
        """Task pass rates (S, T) per environment at ``step`` (default: final) over the method's final runs.

        None when a run has no validation shards of that step (compacted results may hold metrics only), or no valid
        episode of an environment. AnalysisError when a run was evaluated on fewer or other tasks at that step than at
        its first: a mean over them is another quantity.
        """
        wanted = self.final_step if step is None else step
        runs = self.final_runs(method)
        rows = self.validation
        if wanted is None or not runs or rows.empty:
            return None
        rows = rows[(rows["method"] == method) & (rows["step"] == wanted) & rows["seed"].isin([r.seed for r in runs])]
        result: dict[str, np.ndarray] = {}
        for environment in self.environments:
            here = rows[rows["environment"] == environment]
            means = {seed: task_means(outcomes_of(block)) for seed, block in here.groupby("seed")}
            if len(means) != len(runs) or not all(means.values()):
                return None
            self._refuse_other_tasks(here, environment, method, wanted)
            tasks = sorted(here["task_id"].unique())
            rows_ST = [[means[seed].get(task, np.nan) for task in tasks] for seed in sorted(means)]
            result[environment] = np.array(rows_ST, dtype=np.float64)
        return result or None

    def why_no_outcomes(self, method: str) -> str:
        """Why ``outcomes`` has none of a method's final runs, in a few words."""
        runs = self.final_runs(method)
        if not runs:
            return "no finished run"
        covered = {e: [self.coverage(run, e) for run in runs] for e in self.environments}
        lost = [e for e, found in covered.items() if any(c is not None and not c["valid"] for c in found)]
        return f"no valid episode of {', '.join(map(environment_name, lost))}" if lost else "no validation shards"

    @cached_property
    def panel(self) -> dict[str, frozenset[str]]:
        """environment -> the validation tasks of the first evaluations; one panel for all runs (``check_panels``)."""
        first = self.validation[self.validation["step"] == self.validation["step"].min()]
        return {str(name): frozenset(rows) for name, rows in first.groupby("environment")["task_id"]}

    def _refuse_other_tasks(self, rows: pd.DataFrame, environment: str, method: str, step: int) -> None:
        wanted = self.panel.get(environment, frozenset())
        for seed, tasks in rows.groupby("seed")["task_id"]:
            found = set(tasks)
            if found != wanted:
                raise AnalysisError(
                    f"{self.experiment.path}: {method}/seed-{seed} was evaluated on {len(found)} tasks of "
                    f"{environment} "
                    f"at update {step}, the panel has {len(wanted)} ({len(found ^ wanted)} differ): its shards of that "
                    "step are incomplete. Restore them, or leave the run out."
                )

    def tag_counts(self, run: Run, judge: str) -> pd.DataFrame:
        """Training tags of a judge as counts of rollouts, counted once: columns step, environment, rubric_id,
        demonstrates, violates, absent, error."""
        if (run, judge) not in self._counts:
            counts = read_tag_counts(run.reader, judge).drop_columns(["judge"])
            if not run.reader.shards("tag_counts"):
                note_records("tags", pc.sum(pa.chunked_array(counts[o] for o in OUTCOMES)).as_py() or 0)
            self._counts[run, judge] = counts.to_pandas()
        return self._counts[run, judge]

    def rubric_counts(self, run: Run, judge: str) -> pd.DataFrame:
        """The same over all environments: columns step, rubric_id, demonstrates, violates, absent, error."""
        counts = self.tag_counts(run, judge)
        return counts.groupby(["step", "rubric_id"], as_index=False, sort=True)[list(OUTCOMES)].sum()

    def _collect(self, load: Any) -> pd.DataFrame:
        frames = []
        for run in self.experiment.runs:
            table: pa.Table = load(run)
            frame = table.to_pandas()
            frame.insert(0, "method", run.method)
            frame.insert(1, "seed", run.seed)
            frames.append(frame)
        kept = [frame for frame in frames if len(frame)] or frames[:1]
        return pd.concat(kept, ignore_index=True)


def judges(run: Run, kind: str = "tags") -> list[str]:
    """Ids of the judges that tagged a run."""
    found = {shard.judge for shard in run.reader.shards(kind) if shard.judge}
    if not found:
        counted = "tag_counts" if kind == "tags" and run.reader.shards("tag_counts") else kind
        column = run.reader.scan(counted, ["judge"])["judge"]
        found = set(pc.unique(column).to_pylist())
    return sorted(found)


def only_judge(runs: Iterable[Run]) -> str | None:
    """The judge that all tagged runs share; None when nothing is tagged; an error when there are several."""
    found = {judge for run in runs for judge in judges(run)}
    if len(found) > 1:
        raise AnalysisError(f"the runs hold tags of several judges: {', '.join(sorted(found))}; name one with --judge")
    return next(iter(found), None)


def outcomes_of(rows: pd.DataFrame) -> list[tuple[str, float | None]]:
    """(task, outcome) of validation rollouts, None for a lost one."""
    return [
        (task, None if np.isnan(value) else value) for task, value in zip(rows["task_id"], rows["outcome"], strict=True)
    ]


def _is(frame: pd.DataFrame, run: Run) -> pd.Series:
    return (frame["method"] == run.method) & (frame["seed"] == run.seed)
