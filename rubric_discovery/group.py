"""Step 6, group: the kept candidates become skills.

Reads ``merged.parquet`` and ``screen.parquet``; asks the strong model once and writes ``skills.yaml``. A reply counts
only if every kept candidate stands in exactly one skill.

    python -m rubric_discovery.group --config configs/discovery/quickstart.yaml --out build/discovery
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from rised.rubrics.judge_reply import ReplyError, find_object
from rised.rubrics.vocabulary import Provenance, Skill
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.normalise import DEFINITION, ID
from rubric_discovery.prompts import load_prompt
from rubric_discovery.records import Candidate, Screened, read_rows
from rubric_discovery.strong_model import Request, ask, asked_with, make_model
from rubric_discovery.work import Step, Work, main_of, write_yaml

PLACES = frozenset({"max_skills", "rubrics"})
Grouped = list[tuple[Skill, list[str]]]


def schema(rubric_ids: Sequence[str], max_skills: int) -> dict[str, Any]:
    """JSON schema of the reply: all that a grammar can enforce. A single skill has every rubric, in the given order."""
    count = len(rubric_ids)
    members: dict[str, Any] = {"type": "array", "items": {"enum": list(rubric_ids)}, "minItems": 1, "maxItems": count}
    if max_skills == 1:
        members |= {"prefixItems": [{"const": name} for name in rubric_ids], "items": False, "minItems": count}
    skill = {
        "type": "object",
        "properties": {
            "id": ID,
            "definition": DEFINITION,
            "rubrics": members,
        },
        "required": ["id", "definition", "rubrics"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"skills": {"type": "array", "items": skill, "minItems": 1, "maxItems": max_skills}},
        "required": ["skills"],
        "additionalProperties": False,
    }


def read_skills(rubric_ids: Sequence[str], max_skills: int, text: str, finish_reason: str) -> Grouped:
    """Skills and their members, in the reply's order; ReplyError says why it is none."""
    entries = find_object(text, "skills")["skills"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ReplyError("schema", "'skills' is no list of objects")
    if len(entries) > max_skills:
        raise ReplyError("too_many_skills", f"{len(entries)} of at most {max_skills}")
    found: Grouped = []
    for entry in entries:
        members = entry.get("rubrics")
        if not isinstance(members, list) or not members or not all(isinstance(name, str) for name in members):
            raise ReplyError("empty_skill", f"{entry.get('id')!r} has no list of rubrics"[:120])
        try:
            skill = Skill(id=entry.get("id"), definition=entry.get("definition"), provenance=Provenance.DISCOVERED)
        except ValidationError as error:
            detail = error.errors()[0]
            raise ReplyError("skill", f"{entry.get('id')!r}: {detail['loc'][0]}: {detail['msg']}"[:200]) from None
        found.append((skill, members))
    counted = Counter(name for _, members in found for name in members)
    wrong = [name for name in rubric_ids if counted[name] != 1] + sorted(set(counted) - set(rubric_ids))
    if wrong:
        raise ReplyError("members", f"{wrong[0]} stands {counted[wrong[0]]} times, or is unknown")
    twice = [name for name, count in Counter(skill.id for skill, _ in found).items() if count > 1]
    if twice:
        raise ReplyError("duplicate_skill", twice[0])
    return found


def run(work: Work) -> Mapping[str, Any]:
    settings = work.settings
    kept = {row.rubric_id for row in read_rows(work.path("screen.parquet"), Screened) if not row.dropped_by}
    candidates = [row for row in read_rows(work.path("merged.parquet"), Candidate) if row.rubric_id in kept]
    if not candidates:
        raise DiscoveryError(f"no candidate is kept: {work.path('screen.md')} says why")
    ids = [candidate.rubric_id for candidate in candidates]
    prompt = load_prompt(settings.prompts.group, PLACES)
    model = make_model(settings.strong_model)
    most = settings.group.max_skills
    lines = [
        {"id": c.rubric_id, "polarity": c.polarity, "definition": c.definition, "environments": list(c.environments)}
        for c in candidates
    ]
    values = {"max_skills": str(most), "rubrics": "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)}
    read = partial(read_skills, ids, most)
    request = Request("group", "all", prompt.messages(values), "skills", schema(ids, most), read, prompt.asked_again)
    (answer,) = ask(work, model, [request])
    if answer.value is None:
        raise DiscoveryError(
            f"{model.model_id} gave no skills ({answer.reply.status}: {answer.reply.reason}): see "
            f"{work.path('group_replies.parquet')}, and start the same command again"
        )
    skills = [
        {"id": skill.id, "definition": skill.definition, "rubrics": list(members)} for skill, members in answer.value
    ]
    write_yaml(work.path("skills.yaml"), {"model": model.model_id, "prompt": prompt.version, "skills": skills})
    return {
        "model": model.model_id,
        "prompt": prompt.version,
        "counts": {"rubrics": len(ids), "skills": len(skills)},
    }


def sources(work: Work) -> dict[str, str]:
    return asked_with(work.settings.strong_model, work.settings.prompts.group)


STEP = Step("group", ("merged.parquet", "screen.parquet"), ("skills.yaml", "group_replies.parquet"), run, sources)

if __name__ == "__main__":
    raise SystemExit(main_of(STEP, __doc__))
