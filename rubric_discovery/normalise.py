"""Step 3, normalise: observed behaviours become candidates in the vocabulary's form.

Reads ``observations.parquet``; writes ``candidates.parquet`` and the raw replies. A candidate has an id (a verb phrase
in snake_case), a definition, a polarity, one positive and one negative example, and the observations behind it. A reply
counts only if every observation stands in it exactly once.

    python -m rubric_discovery.normalise --config configs/discovery/quickstart.yaml --out build/discovery
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from rised.rubrics.judge_reply import ReplyError, find_object
from rised.rubrics.vocabulary import Polarity, Provenance, Rubric
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.prompts import load_prompt
from rubric_discovery.propose import OK
from rubric_discovery.records import Candidate, Observation, read_rows, write_rows
from rubric_discovery.strong_model import Request, ask, asked_with, make_model
from rubric_discovery.work import Step, Work, main_of

PLACES = frozenset({"environment", "behaviours"})
UNGROUPED = "ungrouped"
"""The skill of a candidate before step 6."""
MAX_EXAMPLE = 300
"""Characters of an example; without a bound a small model repeats itself to its limit of tokens."""
ID = {"type": "string", "pattern": r"^[a-z][a-z0-9]{1,15}(_[a-z0-9]{1,15}){1,7}$"}
DEFINITION = {"type": "string", "pattern": r'^[A-Z][^ \n"\\]{0,20}( [^ \n"\\]{1,20}){3,33}\.$'}
"""Schemas of what ``rised.rubrics.vocabulary`` asks of an entry. A definition is bounded by its words: xgrammar
compiles no pattern that counts beyond 128 repetitions.
"""

Found = tuple[Rubric, tuple[int, ...]]


def schema(count: int) -> dict[str, Any]:
    """JSON schema of a reply on ``count`` behaviours: all that a grammar can enforce of a rubric's form."""
    number = {"type": "integer", "minimum": 0, "maximum": count - 1}
    example = {"type": "string", "minLength": 10, "maxLength": MAX_EXAMPLE}
    properties = {
        "numbers": {"type": "array", "items": number, "minItems": 1, "maxItems": count},
        "id": ID,
        "definition": DEFINITION,
        "polarity": {"enum": ["positive", "negative"]},
        "positive_example": example,
        "negative_example": example,
    }
    rubric = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {
        "type": "object",
        "properties": {
            "rubrics": {"type": "array", "items": rubric, "maxItems": count},
            "left_out": {"type": "array", "items": number, "maxItems": count},
        },
        "required": ["rubrics", "left_out"],
        "additionalProperties": False,
    }


def read_rubrics(environment: str, polarities: Sequence[str], text: str, finish_reason: str) -> list[Found]:
    """Rubrics and the numbers of their observations. ``polarities``: of the observations. ReplyError says why none."""
    reply = find_object(text, "rubrics")
    entries, left_out = reply["rubrics"], reply.get("left_out", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ReplyError("schema", "'rubrics' is no list of objects")
    numbers = [n for entry in [*(entry.get("numbers") for entry in entries), left_out] for n in _integers(entry)]
    twice = sorted(number for number, count in Counter(numbers).items() if count > 1)
    if twice:
        raise ReplyError("duplicate_number", str(twice[0]))
    missing = sorted(set(range(len(polarities))) - set(numbers))
    unknown = sorted(set(numbers) - set(range(len(polarities))))
    if missing or unknown:
        raise ReplyError("numbers", f"missing {missing}, unknown {unknown}")
    found = [(_rubric(entry, environment), tuple(sorted(_integers(entry["numbers"])))) for entry in entries]
    for rubric, members in found:
        if not members:
            raise ReplyError("numbers", f"{rubric.id} stands for no behaviour")
        if {polarities[number] for number in members} != {rubric.polarity.value}:
            raise ReplyError("polarity", f"{rubric.id} is {rubric.polarity.value}, its behaviours are not all")
    return found


def _integers(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
        raise ReplyError("schema", "numbers are no list of integers")
    return value


def _rubric(entry: Mapping[str, Any], environment: str) -> Rubric:
    given = {key: value for key, value in entry.items() if key != "numbers"}
    try:
        return Rubric(**given, skill=UNGROUPED, environments=(environment,), provenance=Provenance.DISCOVERED)
    except (ValidationError, TypeError) as error:
        detail = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        place = ".".join(map(str, detail["loc"]))
        raise ReplyError("rubric", f"{entry.get('id')!r}: {place}: {detail['msg']}"[:200]) from None


def rubric_of(candidate: Candidate) -> Rubric:
    """A stored candidate as the judge's prompt needs it."""
    return Rubric(
        id=candidate.rubric_id,
        definition=candidate.definition,
        polarity=Polarity(candidate.polarity),
        positive_example=candidate.positive_example,
        negative_example=candidate.negative_example,
        skill=UNGROUPED,
        environments=candidate.environments,
        provenance=Provenance.DISCOVERED,
    )


def batches(observations: Sequence[Observation], size: int) -> list[list[Observation]]:
    """Observations of one environment in each, at most ``size``."""
    found = []
    for environment in sorted({row.environment for row in observations}):
        own = [row for row in observations if row.environment == environment]
        found += [own[start : start + size] for start in range(0, len(own), size)]
    return found


def run(work: Work) -> Mapping[str, Any]:
    settings = work.settings
    observations = [row for row in read_rows(work.path("observations.parquet"), Observation) if row.status == OK]
    prompt = load_prompt(settings.prompts.normalise, PLACES)
    model = make_model(settings.strong_model)
    groups = batches(observations, settings.normalise.batch)
    requests, counted = [], Counter[str]()
    for rows in groups:
        environment = rows[0].environment
        lines = [
            {"number": n, "behaviour": row.behaviour, "polarity": row.polarity, "quote": row.quote}
            for n, row in enumerate(rows)
        ]
        values = {
            "environment": environment,
            "behaviours": "\n".join(json.dumps(line, ensure_ascii=False) for line in lines),
        }
        subject = f"{environment}:{counted[environment]:03d}"
        counted[environment] += 1
        read = partial(read_rubrics, environment, [row.polarity for row in rows])
        messages, form = prompt.messages(values), schema(len(rows))
        requests.append(Request("normalise", subject, messages, "rubrics", form, read, prompt.asked_again))
    answers = ask(work, model, requests)
    candidates = []
    for request, rows, answer in zip(requests, groups, answers, strict=True):
        for number, (rubric, members) in enumerate(answer.value or ()):
            candidates.append(
                Candidate(
                    candidate_id=f"{request.subject}:{number}",
                    rubric_id=rubric.id,
                    definition=rubric.definition,
                    polarity=rubric.polarity.value,
                    positive_example=rubric.positive_example,
                    negative_example=rubric.negative_example,
                    environments=rubric.environments,
                    observation_ids=tuple(rows[m].observation_id for m in members),
                    model=model.model_id,
                )
            )
    statuses = Counter(answer.reply.status for answer in answers)
    if not candidates:
        raise DiscoveryError(
            f"{model.model_id} made no candidate of {len(observations)} observations (replies: {dict(statuses)}): see "
            f"{work.path('normalise_replies.parquet')}"
        )
    write_rows(work.path("candidates.parquet"), Candidate, candidates)
    covered = {name for candidate in candidates for name in candidate.observation_ids}
    return {
        "model": model.model_id,
        "prompt": prompt.version,
        "counts": {
            "observations": len(observations),
            "covered": len(covered),
            "candidates": len(candidates),
        },
        "replies": dict(statuses),
    }


def sources(work: Work) -> dict[str, str]:
    return asked_with(work.settings.strong_model, work.settings.prompts.normalise)


STEP = Step("normalise", ("observations.parquet",), ("candidates.parquet", "normalise_replies.parquet"), run, sources)

if __name__ == "__main__":
    raise SystemExit(main_of(STEP, __doc__))
