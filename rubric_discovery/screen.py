"""Step 5, screen: which merged candidates can be used as rubrics, and why the others cannot.

Reads ``merged.parquet`` and ``sampled.parquet``; tags every sampled rollout twice with the judge's own prompt, writes
both passes (``tags_1.parquet``, ``tags_2.parquet``), the raw replies, and the verdicts as ``screen.parquet`` and, to be
read, ``screen.md``. The second pass shows the rubrics in reversed order and with another seed, since at temperature 0
the same question has the same answer [ours]. The screens, in their order; the first that holds drops a candidate:

- ``leak``: its name or definition holds a token of one task's solution;
- ``tags``: too few rollouts were tagged in both passes;
- ``rare``, ``common``: shown by less than 2 % or more than 98 % of them;
- ``agreement``: kappa of the two passes below 0.6, or undefined;
- ``outcome``: |correlation with the reward| above 0.95.

    python -m rubric_discovery.screen --config configs/discovery/quickstart.yaml --out build/discovery
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rised.records.files import write_bytes
from rised.records.schemas import from_table, to_table
from rised.records.shards import read_shard, write_shard
from rised.records.types import Rollout, Tag, TagState, TagStatus
from rised.rubrics.agreement import cohen_kappa
from rised.rubrics.evidence import executed
from rised.rubrics.judge_prompt import load_prompt
from rised.rubrics.judge_reply import Verdicts, read_reply, reply_schema
from rised.rubrics.judge_transcript import transcript
from rised.rubrics.tags import valid_states
from rised.rubrics.vocabulary import Rubric
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.leaks import leak, solution_tokens
from rubric_discovery.normalise import rubric_of
from rubric_discovery.records import Candidate, Screened, read_rows, write_rows
from rubric_discovery.settings import ScreenSettings
from rubric_discovery.strong_model import Answer, Request, ask, asked_with, make_model
from rubric_discovery.work import Step, Work, main_of

SHOWN = {"positive": TagState.DEMONSTRATES, "negative": TagState.VIOLATES}
"""Polarity -> the state of a rollout that shows the behaviour."""
PASSES = (1, 2)
States = Mapping[str, Mapping[str, TagState]]


def tag_requests(
    work: Work, rollouts: Sequence[Rollout], rubrics: Sequence[Rubric], limits: tuple[int, int]
) -> list[Request[Verdicts]]:
    """One request a rollout and pass, for all candidates of its environment."""
    prompt = load_prompt(work.settings.prompts.tag)
    requests: list[Request[Verdicts]] = []
    for number in PASSES:
        for rollout in rollouts:
            own = [rubric for rubric in rubrics if rollout.environment in rubric.environments]
            if not own:
                continue
            shown = own if number == 1 else own[::-1]
            turns = len(rollout.turns)
            messages = prompt.messages(rollout.environment, shown, transcript(rollout, *limits).text, turns)
            requests.append(
                Request(
                    step="screen",
                    subject=f"{number}:{rollout.rollout_id}",
                    messages=messages,
                    name="tags",
                    schema=reply_schema(shown, turns),
                    read=partial(_read, shown, turns),
                    again=partial(_again, prompt.asked_again, len(shown), turns),
                    seed=number - 1,
                )
            )
    return requests


def _read(rubrics: Sequence[Rubric], turns: int, text: str, finish_reason: str) -> Verdicts:
    return read_reply(text, finish_reason, rubrics, turns)


def _again(asked_again: Any, count: int, turns: int, messages: Any, reply: str, reason: str) -> Any:
    return asked_again(messages, reply, reason, count, turns)


def tags_of(answers: Sequence[Answer[Verdicts]], number: int, rubrics_of: Mapping[str, Sequence[Rubric]]) -> list[Tag]:
    """One pass's tags. ``rubrics_of``: rollout id -> its candidates. A failed reply is an error of all of them."""
    tags = []
    for answer in answers:
        which, _, rollout_id = answer.reply.subject.partition(":")
        if int(which) != number:
            continue
        status, reason = TagStatus(answer.reply.status), answer.reply.reason
        for rubric in rubrics_of[rollout_id]:
            verdict = answer.value.by_rubric[rubric.id] if answer.value is not None else None
            state, turn = verdict if verdict is not None else (None, None)
            tags.append(Tag(rollout_id, rubric.id, state, turn, answer.reply.model, status, reason))
    return tags


def screened(
    candidate: Candidate,
    rollouts: Sequence[Rollout],
    passes: tuple[States, States],
    leaked: str,
    settings: ScreenSettings,
) -> Screened:
    """The measurements of one candidate and the first screen that drops it."""
    applicable = [rollout for rollout in rollouts if rollout.environment in candidate.environments]
    name = candidate.rubric_id
    both = [r for r in applicable if all(name in states.get(r.rollout_id, {}) for states in passes)]
    first, second = ([states[r.rollout_id][name] for r in both] for states in passes)
    shows = np.array([state is SHOWN[candidate.polarity] for state in first], dtype=float)
    prevalence = float(shows.mean()) if both else None
    kappa = cohen_kappa(first, second)
    correlation = _correlation(shows, np.array([r.reward for r in both], dtype=float))
    dropped_by, reason = "", ""
    if leaked:
        dropped_by, reason = "leak", f"{leaked!r} tells the solution of a task"
    elif len(both) < settings.min_tagged or prevalence is None:
        dropped_by, reason = "tags", f"{len(both)} rollouts tagged in both passes, {settings.min_tagged} needed"
    elif prevalence < settings.min_prevalence:
        dropped_by, reason = "rare", f"shown by {prevalence:.1%} of {len(both)} rollouts"
    elif prevalence > settings.max_prevalence:
        dropped_by, reason = "common", f"shown by {prevalence:.1%} of {len(both)} rollouts"
    elif kappa is None or kappa < settings.min_kappa:
        said = "undefined" if kappa is None else f"{kappa:.2f}"
        dropped_by, reason = "agreement", f"kappa of two taggings {said}, {settings.min_kappa:g} needed"
    elif correlation is not None and abs(correlation) > settings.max_outcome_correlation:
        dropped_by, reason = "outcome", f"correlation with the reward {correlation:+.2f}: a name for the outcome"
    errors = len(applicable) - len(both)
    return Screened(
        name, candidate.environments, len(both), errors, prevalence, kappa, correlation, leaked, dropped_by, reason
    )


def _correlation(shows_N: np.ndarray, reward_N: np.ndarray) -> float | None:
    """Pearson's; None where either does not vary."""
    if shows_N.size < 2 or np.ptp(shows_N) == 0 or np.ptp(reward_N) == 0:
        return None
    return float(np.corrcoef(shows_N, reward_N)[0, 1])


def markdown(rows: Sequence[Screened]) -> str:
    """The table that says why each candidate was dropped; the kept ones first."""

    def cell(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    lines = ["| candidate | environments | tagged | prevalence | kappa | r with reward | verdict |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows, key=lambda row: (bool(row.dropped_by), row.rubric_id)):
        verdict = f"dropped ({row.dropped_by}): {row.reason}" if row.dropped_by else "kept"
        numbers = [cell(row.prevalence, ".1%"), cell(row.kappa, ".2f"), cell(row.outcome_correlation, "+.2f")]
        cells = [f"`{row.rubric_id}`", ", ".join(row.environments), str(row.tagged), *numbers, verdict]
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
    return "\n".join(lines) + "\n"


def run(work: Work) -> Mapping[str, Any]:
    settings = work.settings
    candidates = read_rows(work.path("merged.parquet"), Candidate)
    sampled = [executed(r) for r in from_table(read_shard(work.path("sampled.parquet"), "rollouts"), "sampled.parquet")]
    rubrics = [rubric_of(candidate) for candidate in candidates]
    model = make_model(settings.tagging_model)
    limits = model.settings.transcript_characters, model.settings.final_turns
    requests = tag_requests(work, sampled, rubrics, limits)
    answers = ask(work, model, requests)
    rubrics_of = {r.rollout_id: [c for c in rubrics if r.environment in c.environments] for r in sampled}
    ids = [rollout.rollout_id for rollout in sampled]
    passes = []
    for number in PASSES:
        tags = tags_of(answers, number, rubrics_of)
        write_shard(work.path(f"tags_{number}.parquet"), to_table(tags, "tags"))
        passes.append(valid_states(tags, ids))
    tokens = solution_tokens(sampled)
    rows = [
        screened(candidate, sampled, (passes[0], passes[1]), leak(candidate, tokens), settings.screen)
        for candidate in candidates
    ]
    write_rows(work.path("screen.parquet"), Screened, rows)
    write_bytes(work.path("screen.md"), markdown(rows).encode())
    kept = sum(not row.dropped_by for row in rows)
    if not kept:
        raise DiscoveryError(f"no candidate passed the screens: {work.path('screen.md')} says why, one by one")
    return {
        "model": model.model_id,
        "prompt": load_prompt(settings.prompts.tag).version,
        "counts": {"candidates": len(rows), "kept": kept},
        "dropped_by": dict(sorted(Counter(row.dropped_by for row in rows if row.dropped_by).items())),
        "replies": dict(Counter(answer.reply.status for answer in answers)),
    }


def sources(work: Work) -> dict[str, str]:
    return asked_with(work.settings.tagging_model, work.settings.prompts.tag)


STEP = Step(
    "screen",
    ("merged.parquet", "sampled.parquet"),
    ("tags_1.parquet", "tags_2.parquet", "screen_replies.parquet", "screen.parquet", "screen.md"),
    run,
    sources,
)

if __name__ == "__main__":
    raise SystemExit(main_of(STEP, __doc__))
