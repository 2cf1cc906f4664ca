"""What was run, and in sentences what the numbers support; the number of seeds is always said."""

from __future__ import annotations

from dataclasses import dataclass

from analysis import published
from analysis import statistics as st
from analysis.formatting import interval_text, percent, points, relative
from analysis.frames import Frames
from analysis.names import BASELINE, PROPOSED, method_name
from analysis.results import is_ranked
from analysis.tables.learning import learning_frame
from analysis.tables.table2 import own_results
from analysis.tables.table9 import own_step_times


@dataclass(frozen=True, slots=True)
class Tile:
    """One number at the top of the page."""

    value: str
    label: str


def tiles(frames: Frames) -> list[Tile]:
    """Size of the experiment at a glance."""
    experiment = frames.experiment
    finished = sum(run.complete for run in experiment.runs)
    panel = frames.pass_rates.loc[frames.pass_rates["environment"] == "overall", "tasks"].max()
    updates = max((run.last_step for run in experiment.runs), default=0)
    return [
        Tile(f"{finished} of {len(experiment.runs) + len(experiment.missing)}", "runs finished"),
        Tile(str(len(experiment.methods)), "methods" if len(experiment.methods) != 1 else "method"),
        Tile(str(len(experiment.seeds)), "seeds" if len(experiment.seeds) != 1 else "seed"),
        Tile(str(updates), "updates"),
        Tile("–" if panel != panel else f"{panel:,.0f}", "validation tasks"),
        Tile(str(len(frames.environments)), "environments"),
    ]


def headline(frames: Frames) -> str:
    """The first sentence: the proposed method against the baseline, as far as the data carry it."""
    means = {r["method"]: r for r in own_results(frames).to_dict("records") if r["environment"] == "overall"}
    if PROPOSED not in means or BASELINE not in means:
        lacking = " and ".join(method_name(m) for m in (PROPOSED, BASELINE) if m not in means)
        return f"No comparison of the two methods: no finished run of {lacking} in this experiment."
    ours, base = means[PROPOSED], means[BASELINE]
    text = (
        f"{method_name(PROPOSED)} ends at an overall validation pass rate of {percent(ours['mean'], 1)} and "
        f"{method_name(BASELINE)} at {percent(base['mean'], 1)}: {points(ours['mean'] - base['mean'])} points"
    )
    first, second = frames.outcomes(PROPOSED), frames.outcomes(BASELINE)
    seeds = min(ours["n"], base["n"])
    if first is None or second is None:
        return f"{text}. Without validation shards no interval can be given. {_seed_words(seeds)}"
    found = st.paired_difference(first, second)
    text += f" (95% interval over the {found.task_count:,} tasks {interval_text(found.over_tasks, as_points=True)}). "
    if not found.over_tasks.excludes_zero:
        return f"{text}The interval includes 0: these runs do not tell the two methods apart. {_seed_words(seeds)}"
    winner = method_name(PROPOSED if found.estimate > 0 else BASELINE)
    text += f"These checkpoints of {winner} are better on this panel than chance in its tasks explains. "
    if found.over_seeds.defined:
        excludes = (
            "also excludes 0"
            if found.over_seeds.excludes_zero
            else "includes 0, so another set of seeds may turn it around"
        )
        return f"{text}The interval over seeds {interval_text(found.over_seeds, as_points=True)} {excludes}."
    return f"{text}{_seed_words(seeds)}"


def _seed_words(seeds: int) -> str:
    if seeds >= st.MIN_SEEDS:
        return f"{seeds} seeds per method at least."
    count = "One seed per method says" if seeds == 1 else f"{seeds} seeds per method say"
    return f"{count} next to nothing about how another training run would end."


def findings(frames: Frames) -> list[str]:
    """Further sentences: learning, the ranking as it is, the price of a step."""
    texts = []
    learned = learning_frame(frames)
    learned = learned[learned["environment"] == "overall"].dropna(subset=["warm_start", "final"])
    if len(learned):
        gains = learned["final"] - learned["warm_start"]
        up = int((gains > 0).sum())
        spread = f"from {points(gains.min())} to {points(gains.max())}; {up} of {len(gains)} runs rose"
        texts.append(
            f"Learning: from the warm start ({percent(learned['warm_start'].mean(), 1)}) the overall pass rate changed "
            f"by {points(gains.mean())} points "
            + (f"on average ({spread})." if len(gains) > 1 else "in the one finished run.")
        )
    means = own_results(frames)
    means = means[means["environment"] == "overall"].sort_values("mean", ascending=False)
    if len(means) > 1:
        ranking = ", ".join(
            f"{method_name(r['method'])} {percent(r['mean'], 1)}{'' if is_ranked(r) else ' (not ranked)'}"
            for r in means.to_dict("records")
        )
        texts.append(
            f"Overall, from best to worst: {ranking}. Neighbours that differ by less than their intervals are not "
            "ranked by these data."
        )
    steps = own_step_times(frames).set_index("method")
    if PROPOSED in steps.index and BASELINE in steps.index:
        texts.append(
            f"Price: a {method_name(PROPOSED)} step takes {relative(steps.loc[PROPOSED, 'relative'])} the time of a "
            f"{method_name(BASELINE)} step on the wall clock, whatever else ran on the machine (published: "
            f"{relative(_published_relative())}, on 32 H100 with a judge model beside them)."
        )
    return texts


def _published_relative() -> float:
    return float(published.step_time().set_index("method").loc[PROPOSED, "relative"])
