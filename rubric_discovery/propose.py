"""Step 2, propose: a strong model names behaviours that tell the success and the failure of one task apart.

Reads ``sampled.parquet`` and ``pairs.parquet``; writes ``observations.parquet`` and the raw replies. Evidence is
checked: a quote that does not stand in the turn it names leaves the observation out of the later steps, and it says so.

    python -m rubric_discovery.propose --config configs/discovery/quickstart.yaml --out build/discovery
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from rised.records.schemas import from_table
from rised.records.shards import read_shard
from rised.records.types import Rollout, Turn
from rised.rubrics.evidence import executed
from rised.rubrics.judge_reply import ReplyError, find_object
from rised.rubrics.judge_transcript import transcript
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.prompts import load_prompt
from rubric_discovery.records import Observation, Pair, read_rows, write_rows
from rubric_discovery.strong_model import Request, ask, asked_with, make_model
from rubric_discovery.work import Step, Work, main_of

PLACES = frozenset({"environment", "success", "failure"})
MAX_BEHAVIOURS = 8
OK, NO_QUOTE = "ok", "quote_not_found"
MAX_WORDS, MAX_QUOTE = 200, 300
"""Characters of a behaviour and of its quote; without a bound a small model repeats itself to its limit of tokens."""

Found = dict[str, Any]


def schema(lengths: Mapping[str, int]) -> dict[str, Any]:
    """JSON schema of a reply: all that a grammar can enforce of the rule. ``lengths``: episode -> its turns."""
    return {
        "type": "object",
        "properties": {
            "behaviours": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_BEHAVIOURS,
                "items": {"anyOf": [_entry(episode, count) for episode, count in lengths.items()]},
            }
        },
        "required": ["behaviours"],
        "additionalProperties": False,
    }


def _entry(episode: str, turns: int) -> dict[str, Any]:
    """A model writes keys in the schema's order: the evidence, then what follows from it."""
    properties = {
        "episode": {"const": episode},
        "turn": {"type": "integer", "minimum": 0, "maximum": turns - 1},
        "quote": {"type": "string", "minLength": 1, "maxLength": MAX_QUOTE},
        "behaviour": {"type": "string", "minLength": 1, "maxLength": MAX_WORDS},
        "polarity": {"enum": ["positive", "negative"]},
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def read_behaviours(lengths: Mapping[str, int], text: str, finish_reason: str) -> list[Found]:
    """The behaviours of a reply. ``lengths``: episode -> its number of turns. ReplyError says why it is none."""
    entries = find_object(text, "behaviours")["behaviours"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ReplyError("schema", "'behaviours' is no list of objects")
    for place, entry in enumerate(entries[:MAX_BEHAVIOURS]):
        words, turn = entry.get("behaviour"), entry.get("turn")
        if not isinstance(words, str) or not words.strip() or not isinstance(entry.get("quote"), str):
            raise ReplyError("schema", f"behaviour {place} has no words or no quote")
        if entry.get("polarity") not in ("positive", "negative"):
            raise ReplyError("polarity", f"behaviour {place}: {entry.get('polarity')!r}"[:120])
        if entry.get("episode") not in lengths:
            raise ReplyError("episode", f"behaviour {place}: {entry.get('episode')!r}"[:120])
        if isinstance(turn, bool) or not isinstance(turn, int) or not 0 <= turn < lengths[entry["episode"]]:
            raise ReplyError("turn", f"behaviour {place}: {turn!r}"[:120])
    return entries[:MAX_BEHAVIOURS]


def stands_in(quote: str, turn: Turn) -> bool:
    """Whether a quote is of a turn's texts, white space and case aside; an empty quote is none."""
    wanted = _plain(quote)
    return bool(wanted) and any(
        wanted in _plain(text) for text in (turn.observation, turn.action_raw, turn.action_mapped)
    )


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).strip(" .\"'…")


def run(work: Work) -> Mapping[str, Any]:
    settings = work.settings
    sampled: dict[str, Rollout] = {
        rollout.rollout_id: executed(rollout)
        for rollout in from_table(read_shard(work.path("sampled.parquet"), "rollouts"), "sampled.parquet")
    }
    pairs = read_rows(work.path("pairs.parquet"), Pair)
    prompt = load_prompt(settings.prompts.propose, PLACES)
    model = make_model(settings.strong_model)
    limits = model.settings.transcript_characters // 2, model.settings.final_turns
    requests = []
    for pair in pairs:
        success, failure = sampled[pair.success_id], sampled[pair.failure_id]
        values = {
            "environment": pair.environment,
            "success": transcript(success, *limits).text,
            "failure": transcript(failure, *limits).text,
        }
        lengths = {"A": len(success.turns), "B": len(failure.turns)}
        read = partial(read_behaviours, lengths)
        messages, form = prompt.messages(values), schema(lengths)
        requests.append(Request("propose", pair.pair_id, messages, "behaviours", form, read, prompt.asked_again))
    answers = ask(work, model, requests)
    rows = []
    for pair, answer in zip(pairs, answers, strict=True):
        for number, found in enumerate(answer.value or ()):
            rollout_id = pair.success_id if found["episode"] == "A" else pair.failure_id
            holds = stands_in(found["quote"], sampled[rollout_id].turns[found["turn"]])
            rows.append(
                Observation(
                    observation_id=f"{pair.pair_id}:{number}",
                    pair_id=pair.pair_id,
                    environment=pair.environment,
                    rollout_id=rollout_id,
                    turn=found["turn"],
                    behaviour=" ".join(found["behaviour"].split()),
                    polarity=found["polarity"],
                    quote=found["quote"],
                    status=OK if holds else NO_QUOTE,
                    model=model.model_id,
                )
            )
    statuses = Counter(answer.reply.status for answer in answers)
    if not any(row.status == OK for row in rows):
        raise DiscoveryError(
            f"{model.model_id} named no behaviour with evidence in {len(pairs)} pairs (replies: {dict(statuses)}; "
            f"behaviours without evidence: {len(rows)}): see {work.path('propose_replies.parquet')}"
        )
    write_rows(work.path("observations.parquet"), Observation, rows)
    return {
        "model": model.model_id,
        "prompt": prompt.version,
        "counts": {
            "pairs": len(pairs),
            "observations": len(rows),
            "with_evidence": sum(row.status == OK for row in rows),
        },
        "replies": dict(statuses),
    }


def sources(work: Work) -> dict[str, str]:
    return asked_with(work.settings.strong_model, work.settings.prompts.propose)


STEP = Step(
    "propose", ("sampled.parquet", "pairs.parquet"), ("observations.parquet", "propose_replies.parquet"), run, sources
)

if __name__ == "__main__":
    raise SystemExit(main_of(STEP, __doc__))
