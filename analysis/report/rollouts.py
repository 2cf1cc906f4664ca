"""The rollouts that the report's browser holds: a bounded sample, drawn by a fixed seed, as data for its page.

From the first seed of each method, at the first, the middle and the last stored step of validation and of training,
rollouts are drawn from every environment and outcome in turn until ``MOST`` rollouts or ``MOST_BYTES`` are reached.
Only the chosen steps' shards are opened. A compacted run gives the same, without what was said where that is not kept.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.frames import Frames
from analysis.names import environment_name, method_name
from analysis.report.selectors import rule
from analysis.runs import Run
from rised.records.text import printable
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary

SEED = 0
MOST = 360
"""Rollouts of the whole page."""
MOST_BYTES = 3_000_000
"""Bytes of their data, so that the page stays a few megabytes whatever the length of a transcript."""
PER_STRATUM = 4
"""Rollouts of one method, split, step, environment and outcome at most."""
LONGEST = 1600
"""Characters of one observation or action that are shown; the cut is marked."""
TAG_KINDS = {"validation": "validation_tags", "rollouts": "tags"}
_KEYS = ["rollout_id", "group_id", "task_id", "rollout_index", "environment", "success", "reward_valid"]
_FACTS = ["reward", "stop_reason", "turn_count", "token_count", "seed"]
_TEXTS = ["system_prompt", "steering_text", "turns", "final_observation"]

Entry = dict[str, Any]


@dataclass(slots=True)
class Browser:
    """What the page embeds. ``rollouts``: the sample; ``steps``: candidates of its training steps by "method/step";
    ``rubrics``: id, polarity and definition; ``prompts``: system prompts, which rollouts name by index; ``stored``: how
    many rollouts the steps that were drawn from hold."""

    rollouts: list[Entry] = field(default_factory=list)
    steps: dict[str, Entry] = field(default_factory=dict)
    rubrics: list[tuple[str, str, str]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    stored: int = 0

    @property
    def has_texts(self) -> bool:
        return any(entry["turns"] is not None for entry in self.rollouts)

    def to_json(self) -> str:
        """JSON that can stand in a script element: no character that HTML reads is left in it."""
        document = {
            "rollouts": self.rollouts,
            "steps": self.steps,
            "rubrics": self.rubrics,
            "prompts": self.prompts,
        }
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


def browse(frames: Frames, most: int = MOST, most_bytes: int = MOST_BYTES) -> Browser:
    """The sample of an experiment; empty where no rollouts are stored."""
    browser, vocabulary = Browser(), load_vocabulary()
    strata: list[list[Entry]] = []
    for method in frames.experiment.methods:
        run = frames.experiment.of(method)[0]
        for kind in TAG_KINDS:
            for step in _chosen_steps(run, kind):
                strata += _drawn(run, kind, step, browser)
    used = 0
    for entry in _in_turn(strata):
        size = len(json.dumps(entry, ensure_ascii=False).encode())
        if len(browser.rollouts) >= most or used + size > most_bytes:
            break
        used += size
        browser.rollouts.append(entry)
    browser.rollouts.sort(key=_reading_order)
    _keep_used(browser)
    _number_texts(browser, vocabulary)
    return browser


def _chosen_steps(run: Run, kind: str) -> list[int]:
    """The first, the middle and the last step that holds such rollouts."""
    if run.reader.compacted:
        steps = sorted(pc.unique(run.reader.scan(kind, ["step"])["step"]).to_pylist())
    else:
        steps = [step for step in run.reader.steps() if run.reader.shards(kind, [step])]
    return sorted({steps[i] for i in (0, len(steps) // 2, -1)}) if steps else []


def _drawn(run: Run, kind: str, step: int, browser: Browser) -> list[list[Entry]]:
    """Up to ``PER_STRATUM`` rollouts of each environment and outcome; notes the step's candidates in passing."""
    episodes = run.reader.scan(kind, _KEYS, steps=[step]).to_pandas()
    browser.stored += len(episodes)
    order = np.random.default_rng([SEED, zlib.crc32(f"{run.method}/{kind}/{step}".encode())]).permutation(len(episodes))
    shuffled = episodes.sort_values(["task_id", "rollout_index"]).iloc[order].assign(outcome=_outcomes)
    drawn = [part.head(PER_STRATUM) for _, part in shuffled.groupby(["environment", "outcome"], sort=True)]
    ids = [rollout for part in drawn for rollout in part["rollout_id"]]
    entries = {entry["id"]: entry for entry in _read(run, kind, step, ids)}
    if kind == "rollouts":
        browser.steps[f"{run.method}/{step}"] = _candidates(run, step, episodes)
    return [[entries[rollout] for rollout in part["rollout_id"]] for part in drawn]


def _outcomes(episodes: pd.DataFrame) -> pd.Series:
    """An episode out of its token budget failed; one that the environment lost is invalid."""
    return episodes["success"].map({True: "success", False: "failure"}).fillna("invalid")


def _read(run: Run, kind: str, step: int, ids: Sequence[str]) -> list[Entry]:
    chosen = pc.field("rollout_id").isin(pa.array(ids, pa.string()))
    stored = _whole_kind(run, kind, step)
    kept = run.reader.columns(stored)
    columns = [name for name in (*_KEYS, *_FACTS, *_TEXTS) if name in kept]
    rows = run.reader.scan(stored, columns, chosen, steps=[step]).to_pandas(types_mapper=None)
    tags: dict[str, list[Entry]] = defaultdict(list)
    wanted = ["rollout_id", "rubric_id", "state", "evidence_turn", "status", "reason"]
    without_index = run.reader.compacted and TAG_KINDS[kind] not in run.reader.step_rows
    steps = None if without_index else [step]
    for tag in run.reader.scan(TAG_KINDS[kind], wanted, chosen, steps=steps).to_pylist():
        tags[tag["rollout_id"]].append(tag)
    rows = rows.assign(outcome=_outcomes)
    return [_entry(run, kind, step, row, tags[row["rollout_id"]]) for row in rows.to_dict("records")]


def _whole_kind(run: Run, kind: str, step: int) -> str:
    """The kind to read a step's rollouts from: a compacted run may keep the last update's texts apart."""
    apart = kind == "rollouts" and run.reader.compacted and "turns" not in run.reader.columns(kind)
    texts = run.reader.scan("rollout_texts", ["step"], steps=[step]).num_rows if apart else 0
    return "rollout_texts" if texts else kind


def _entry(run: Run, kind: str, step: int, row: Entry, tags: Sequence[Entry]) -> Entry:
    return {
        "id": row["rollout_id"],
        "method": run.method,
        "methodName": method_name(run.method),
        "runSeed": run.seed,
        "environment": row["environment"],
        "environmentName": environment_name(row["environment"]),
        "split": "validation" if kind == "validation" else "training",
        "step": step,
        "task": row["task_id"],
        "group": row["group_id"],
        "outcome": row["outcome"],
        "reward": None if pd.isna(row["reward"]) else round(float(row["reward"]), 4),
        "stop": row["stop_reason"],
        "tokens": int(row["token_count"]),
        "turnCount": int(row["turn_count"]),
        "prompt": row.get("system_prompt"),
        "steering": printable(row.get("steering_text") or ""),
        "turns": [_turn(turn) for turn in row["turns"]] if "turns" in row else None,
        "final": _cut(row.get("final_observation") or ""),
        "tagged": len(tags),
        "tags": [_tag(tag) for tag in tags if tag["state"] != "absent"],
    }


def _turn(turn: Entry) -> list[Any]:
    """Observation, action as written, action as executed ("" where it is the same), accepted, cut off."""
    raw, mapped = turn["action_raw"], turn["action_mapped"]
    executed = mapped if mapped != raw.strip() else ""
    return [_cut(turn["observation"]), _cut(raw), _cut(executed), bool(turn["action_valid"]), bool(turn["truncated"])]


def _tag(tag: Entry) -> list[Any]:
    """Rubric, state ("error" for every failed verdict), turn of the evidence or None, reason."""
    fine = tag["status"] == "ok"
    reason = tag["reason"] if fine else f"{tag['status'].replace('_', ' ')}: {tag['reason']}".rstrip(": ")
    return [tag["rubric_id"], tag["state"] if fine else "error", tag["evidence_turn"], _cut(reason)]


def _candidates(run: Run, step: int, episodes: pd.DataFrame) -> Entry:
    """The step's groups, selected ones first in the order of choice: what was known of each, and what it led to."""
    outcome = episodes.assign(outcome=_outcomes)
    counted = pd.crosstab(outcome["group_id"], outcome["outcome"]).reindex(columns=["success", "failure"], fill_value=0)
    tasks = episodes.drop_duplicates("group_id").set_index("group_id")["task_id"]
    rows = []
    for row in run.reader.scan("selections", steps=[step]).to_pylist():
        group = row["group_id"]
        successes, failures = counted.loc[group] if group in counted.index else (0, 0)
        figures = [None if row[name] is None else round(row[name], 4) for name in ("similarity", "redundancy", "score")]
        task = str(tasks.get(group, group))
        rows.append(
            [group, task, row["environment"], row["order"], *figures, int(successes), int(successes + failures)]
        )
    # Selected first, in their order; then the others by score, best first.
    rows.sort(key=lambda r: (r[3] is None, r[3] if r[3] is not None else 0, -(r[6] if r[6] is not None else -1e9)))
    return {"rule": rule(run.config), "groups": rows}


def _in_turn(strata: Iterable[Sequence[Entry]]) -> Iterable[Entry]:
    """One of each stratum, then the second of each, and so on."""
    for layer in zip_longest(*strata):
        yield from (entry for entry in layer if entry is not None)


def _reading_order(entry: Entry) -> tuple[Any, ...]:
    return (entry["split"] != "validation", -entry["step"], entry["environment"], entry["method"], entry["outcome"])


def _keep_used(browser: Browser) -> None:
    used = {f"{entry['method']}/{entry['step']}" for entry in browser.rollouts if entry["split"] == "training"}
    browser.steps = {name: step for name, step in browser.steps.items() if name in used}


def _number_texts(browser: Browser, vocabulary: Vocabulary) -> None:
    """Put prompts and rubrics into tables of their own and indices in their place."""
    prompts: dict[str, int] = {}
    rubrics: dict[str, int] = {}
    for entry in browser.rollouts:
        if entry["prompt"] is not None:
            entry["prompt"] = prompts.setdefault(_cut(entry["prompt"], 4 * LONGEST), len(prompts))
        for tag in entry["tags"]:
            tag[0] = rubrics.setdefault(tag[0], len(rubrics))
    browser.prompts = list(prompts)
    browser.rubrics = [
        (name, vocabulary[name].polarity.value, vocabulary[name].definition) if name in vocabulary else (name, "", "")
        for name in rubrics
    ]


def _cut(text: str, longest: int = LONGEST) -> str:
    text = printable(text)
    return text if len(text) <= longest else f"{text[:longest]} … [{len(text) - longest:,} characters not shown]"
