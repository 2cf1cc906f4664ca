"""The papers' claims, each with the rule that holds it against a set of runs: a status and one plain sentence.

A sentence says what was compared, by how much, over how many tasks and seeds. A rule never decides from runs that are
missing: it names them. New claims are entries of ``CLAIMS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from analysis import orsd, published
from analysis.costs import devices
from analysis.figures.figure8 import PAPER_JUDGES, judged_frames
from analysis.figures.orsd_figure2 import ALPHAS
from analysis.formatting import interval_text, number, p_text, percent, points, relative
from analysis.frames import Frames
from analysis.names import BASELINE, METHODS, PROPOSED, environment_name, method_name
from analysis.statistics import LEVEL, Interval, seed_overall_S
from analysis.tables.table2 import own_results
from analysis.tables.table9 import own_step_times

ALPHA = 1 - LEVEL
ORSD = "orsd"


class Status(StrEnum):
    """How a claim stands in these runs."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    UNDECIDED = "undecided"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``sentence``: what the data support, in words and numbers."""

    status: Status
    sentence: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The runs, and their paired comparisons (the frame of table ``comparisons``)."""

    frames: Frames
    comparisons: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Claim:
    """``text``: the published claim; ``source``: its place."""

    key: str
    text: str
    source: str
    judge: Callable[[Evidence], Verdict]


def lacking(methods: list[str]) -> Verdict:
    """Not tested, and why."""
    return Verdict(Status.NOT_TESTED, f"No finished run of {', '.join(map(method_name, methods))} here.")


def better(first: str, second: str) -> Callable[[Evidence], Verdict]:
    """The rule "``first`` has a higher overall pass rate than ``second``"."""

    def judge(evidence: Evidence) -> Verdict:
        frames = evidence.frames
        outcomes = {m: frames.outcomes(m) if m in frames.experiment.methods else None for m in (first, second)}
        absent = [m for m, found in outcomes.items() if not found]
        if absent:
            return lacking(absent)
        return _difference(evidence, first, second)

    return judge


def _difference(evidence: Evidence, first: str, second: str) -> Verdict:
    """From the comparison's row, or its mirror image."""
    frame = evidence.comparisons
    for sign, (a, b) in ((1, (first, second)), (-1, (second, first))):
        rows = frame[(frame["method"] == a) & (frame["against"] == b)].dropna(subset=["difference"])
        if len(rows):
            return _told(first, second, sign, rows.iloc[0])
    return Verdict(Status.NOT_TESTED, f"{method_name(first)} and {method_name(second)} are not among the comparisons.")


def _told(first: str, second: str, sign: int, row: pd.Series) -> Verdict:
    estimate = sign * float(row["difference"])
    low, high = sorted((sign * float(row["task_low"]), sign * float(row["task_high"])))
    seeds = f"{row['seeds']} and {row['seeds_against']} seeds"
    text = (
        f"{method_name(first)} − {method_name(second)}: {points(estimate)} points "
        f"{interval_text(Interval(low, high), as_points=True)} over {int(row['tasks']):,} tasks, {seeds}, "
        f"Holm p {p_text(float(row['p_holm']))}"
    )
    if float(row["p_holm"]) > ALPHA:
        return Verdict(Status.UNDECIDED, f"{text}: these runs do not tell them apart.")
    status = Status.AGREES if estimate > 0 else Status.DISAGREES
    smallest = row["p_seeds_smallest"]
    few = pd.notna(smallest) and float(smallest) > ALPHA
    caveat = "; too few seeds to say the same of another training" if few or pd.isna(smallest) else ""
    return Verdict(status, f"{text}: more than chance among tasks explains{caveat}.")


def best_overall(evidence: Evidence) -> Verdict:
    """RISED above every other method of Table 2."""
    others = [m for m in METHODS if m != PROPOSED]
    found = {m: better(PROPOSED, m)(evidence) for m in others}
    missing = [m for m, verdict in found.items() if verdict.status is Status.NOT_TESTED]
    if missing:
        proposed_runs = evidence.frames.final_runs(PROPOSED)
        return lacking(missing if proposed_runs else [PROPOSED])
    below = [m for m, v in found.items() if v.status is Status.DISAGREES]
    above = [m for m, v in found.items() if v.status is Status.AGREES]
    ranking = own_results(evidence.frames).query("environment == 'overall'").sort_values("mean", ascending=False)
    order = ", ".join(
        f"{method_name(m)} {percent(v, 1)}" for m, v in zip(ranking["method"], ranking["mean"], strict=True)
    )
    if below:
        return Verdict(
            Status.DISAGREES, f"{', '.join(map(method_name, below))} end above RISED beyond chance ({order})."
        )
    if len(above) == len(others):
        return Verdict(Status.AGREES, f"RISED ends above all five ({order}), each beyond chance among tasks.")
    return Verdict(
        Status.UNDECIDED,
        f"{order}; RISED is told apart from {len(above)} of {len(others)} others, so these runs give no ranking.",
    )


def top_two_everywhere(evidence: Evidence) -> Verdict:
    """Rank of RISED's mean in each environment; a rank is a description, so it decides only against."""
    means = own_results(evidence.frames)
    means = means[means["environment"] != "overall"]
    present = set(means["method"])
    if not set(METHODS) <= present:
        return lacking([m for m in METHODS if m not in present])
    listed = means[means["method"].isin(METHODS)].copy()
    listed["rank"] = listed.groupby("environment")["mean"].rank(ascending=False, method="min")
    mine = listed[listed["method"] == PROPOSED]
    told = ", ".join(f"{environment_name(r['environment'])} {int(r['rank'])}" for r in mine.to_dict("records"))
    low = bool((mine["rank"] <= 2).all())
    words = "as published" if low else "not as published"
    return Verdict(
        Status.UNDECIDED,
        f"Ranks of RISED's mean among six, {words}: {told}; ranks of means carry no interval and seeds are "
        f"{len(evidence.frames.final_runs(PROPOSED))}.",
    )


def above_later(evidence: Evidence) -> Verdict:
    """Share of the evaluations after the first third at which RISED's mean overall rate is the highest."""
    frames = evidence.frames
    present = [m for m in METHODS if frames.final_runs(m)]
    if PROPOSED not in present or len(present) < 2:
        return lacking([m for m in METHODS if m not in present])
    rates = frames.pass_rates.query("environment == 'overall'")
    kept = pd.concat(
        [rates[(rates["method"] == m) & rates["seed"].isin([r.seed for r in frames.final_runs(m)])] for m in present]
    )
    table = kept.groupby(["method", "step"])["pass_rate"].mean().unstack("method").dropna()
    later = table[table.index > (frames.final_step or 0) / 3]
    if later.empty:
        return Verdict(Status.NOT_TESTED, "No evaluation after the first third that all methods have.")
    first = int((later[PROPOSED] >= later.max(axis=1)).sum())
    return Verdict(
        Status.UNDECIDED,
        f"RISED has the highest mean overall rate at {first} of {len(later)} evaluations after the first third, "
        f"against {len(present) - 1} methods; a count of evaluations of the same runs is no test.",
    )


def both_together(evidence: Evidence) -> Verdict:
    """RISED above both of Figure 3's ablations."""
    parts = [better(PROPOSED, m)(evidence) for m in ("rised_no_selection", "rised_selection_only")]
    for status in (Status.NOT_TESTED, Status.DISAGREES, Status.UNDECIDED):
        if any(part.status is status for part in parts):
            return Verdict(status, " ".join(part.sentence for part in parts))
    return Verdict(Status.AGREES, " ".join(part.sentence for part in parts))


def judge_sizes(evidence: Evidence) -> Verdict:
    """Final overall rates by judge; runs of several experiments, so without a paired test."""
    found, _ = judged_frames(evidence.frames)
    absent = [judge for judge in PAPER_JUDGES if judge not in found]
    if absent:
        return Verdict(Status.NOT_TESTED, f"No RISED run with {', '.join(absent)} as judge beside this experiment.")
    told = []
    for judge in PAPER_JUDGES:
        values = [float(seed_overall_S(o).mean()) for o in [found[judge].outcomes(PROPOSED)] if o]
        told.append(f"{judge} {percent(values[0], 1) if values else 'unfinished'}")
    return Verdict(Status.UNDECIDED, f"Final overall pass rate: {', '.join(told)}; see Figure 8 for seeds and spread.")


def fourth_environment(evidence: Evidence) -> Verdict:
    """RISED against GRPO-64 where AppWorld is in the mix."""
    if "appworld" not in evidence.frames.environments:
        return Verdict(Status.NOT_TESTED, "AppWorld is not in this experiment's mix.")
    return better(PROPOSED, BASELINE)(evidence)


def price(evidence: Evidence) -> Verdict:
    """Step time of RISED over GRPO-64's."""
    steps = own_step_times(evidence.frames).set_index("method")
    absent = [m for m in (PROPOSED, BASELINE) if m not in steps.index]
    if absent:
        return lacking(absent)
    judges = {devices(evidence.frames, run).judge for run in evidence.frames.experiment.of(PROPOSED)}
    how = "with the rule judge in its own process" if judges == {0} else "with a judge model"
    return Verdict(
        Status.UNDECIDED,
        f"{relative(float(steps.loc[PROPOSED, 'relative']))} here {how}, over "
        f"{steps.loc[PROPOSED, 'steps']} steps. Wall-clock times count whatever else ran on the machine; hardware and "
        "judge are other ones too, so the ratio is no check of the published one.",
    )


def orsd_first(evidence: Evidence) -> Verdict:
    """ORSD above every method of its Table 1 that was run; only the comparison with GRPO-64 is a test."""
    verdict = better(ORSD, BASELINE)(evidence)
    if verdict.status is Status.NOT_TESTED:
        return verdict
    final, rates = evidence.frames.final_step, evidence.frames.pass_rates
    ran = [m for m in (ORSD, *orsd.BASELINES) if evidence.frames.final_runs(m)]
    rows = rates[(rates["environment"] == "overall") & (rates["step"] == final) & rates["method"].isin(ran)]
    means = rows.groupby("method")["pass_rate"].mean().sort_values(ascending=False)
    order = ", ".join(f"{method_name(str(m))} {percent(v, 1)}" for m, v in means.items())
    status = Status.DISAGREES if verdict.status is Status.DISAGREES else Status.UNDECIDED
    return Verdict(status, f"{verdict.sentence} Means, of which no ranking is tested: {order}.")


def orsd_alphas(evidence: Evidence) -> Verdict:
    """WebShop success by α; three single differences of the same tasks, so described and not tested."""
    values = orsd.own_results(evidence.frames)
    values = values.set_index("method")["webshop_success"].dropna() if len(values) else values
    absent = [m for m in (BASELINE, *ALPHAS) if m not in values.index]
    if absent:
        return lacking(absent)
    told = ", ".join(f"{method_name(m)} {number(float(values[m]), 1)}" for m in (BASELINE, *ALPHAS))
    return Verdict(Status.UNDECIDED, f"WebShop success in percent: {told}; no test is made of it.")


def seen_in(figure: str) -> Callable[[Evidence], Verdict]:
    """A claim about a curve's shape that a figure and its notes show."""
    return lambda _: Verdict(Status.UNDECIDED, f"A shape, shown with every seed in {figure}; no test is made of it.")


CLAIMS = (
    Claim("table2_best", "RISED has the highest overall pass rate of six methods", "RISED Table 2", best_overall),
    Claim("table2_ranks", "RISED is first or second in every environment", "RISED Table 2", top_two_everywhere),
    Claim(
        "table2_baseline", "RISED is above GRPO-64 overall (0.542, 0.484)", "RISED Table 2", better(PROPOSED, BASELINE)
    ),
    Claim("figure2", published.finding("rised_figure2"), "RISED Figure 2", above_later),
    Claim("figure3", published.finding("rised_figure3"), "RISED Figure 3", both_together),
    Claim("figure4", published.finding("rised_figure4"), "RISED Figure 4", seen_in("Figure 4")),
    Claim("figure5", published.finding("rised_figure5"), "RISED Figure 5", fourth_environment),
    Claim(
        "figure6",
        published.finding("rised_figure6"),
        "RISED Figure 6",
        better("rised_no_steering", "rised_all_rubrics"),
    ),
    Claim("figure7", published.finding("rised_figure7"), "RISED Figure 7", seen_in("Figure 7")),
    Claim("figure8", published.finding("rised_figure8"), "RISED Figure 8", judge_sizes),
    Claim("table9", "A RISED step takes 1.63 times a GRPO-64 step", "RISED Table 9", price),
    Claim("orsd_table1", "ORSD is first overall on ALFWorld and WebShop", "ORSD Table 1", orsd_first),
    Claim("orsd_figure2", published.finding("orsd_figure2"), "ORSD Figure 2", orsd_alphas),
)
