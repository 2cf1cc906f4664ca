"""Step 7, freeze: a versioned vocabulary with a hash, and edits by hand that stay.

Reads ``merged.parquet``, ``screen.parquet`` and ``skills.yaml``; writes the machine's draft (``drafts/<hash>.yaml``),
``vocabulary.yaml``, and ``edits.yaml``: what a person changed. Edit ``vocabulary.yaml`` and freeze again: the change
from its draft is taken over to the new one, field by field (``edits``). The version goes up exactly when the content
changes. A vocabulary that was edited and not frozen again is refused by whoever loads it.

    python -m rubric_discovery.freeze --config configs/discovery/quickstart.yaml --out build/discovery
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rised.config.loader import read_plain
from rised.rubrics.vocabulary import (
    Provenance,
    Rubric,
    Skill,
    Source,
    Vocabulary,
    load_vocabulary,
    refuse_contradictions,
)
from rubric_discovery.edits import RUBRIC_FIELDS, Edits, Entries, applied, difference
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.records import Candidate, Member, Screened, read_rows
from rubric_discovery.work import Step, Work, main_of, write_yaml

VOCABULARY, EDITS = "vocabulary.yaml", "edits.yaml"
NO_DISCOVERY = ("scripted:", "recorded:")
"""How the ids of models begin whose findings are none."""


def draft_of(work: Work) -> tuple[Entries, dict[str, Source]]:
    """What the steps before found, and where each rubric comes from."""
    merged = {row.rubric_id: row for row in read_rows(work.path("merged.parquet"), Candidate)}
    screen = {row.rubric_id: row for row in read_rows(work.path("screen.parquet"), Screened)}
    members = read_rows(work.path("members.parquet"), Member)
    grouped = read_plain(work.path("skills.yaml"))
    rubrics: dict[str, dict[str, Any]] = {}
    skills: dict[str, dict[str, Any]] = {}
    sources = {}
    try:
        for skill in grouped["skills"]:
            skills[skill["id"]] = {"definition": skill["definition"], "provenance": Provenance.DISCOVERED.value}
            for name in sorted(skill["rubrics"]):
                row, measured = merged[name], screen[name]
                fields: dict[str, Any] = {
                    field: getattr(row, field, None) for field in RUBRIC_FIELDS if field not in ("skill", "note")
                }
                fields |= {"environments": list(row.environments), "provenance": Provenance.DISCOVERED.value}
                rubrics[name] = {"skill": skill["id"], **fields, "note": ""}
                sources[name] = Source(
                    model=row.model,
                    observations=row.observation_ids,
                    merged_from=tuple(m.candidate_id for m in members if m.merged_id == name),
                    prevalence=_rounded(measured.prevalence),
                    kappa=_rounded(measured.kappa),
                    outcome_correlation=_rounded(measured.outcome_correlation),
                )
    except (KeyError, TypeError) as error:
        raise DiscoveryError(
            f"{work.path('skills.yaml')} and the tables before it do not fit ({error!r}): run group again"
        ) from None
    return Entries(rubrics, skills), sources


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def vocabulary_of(
    entries: Entries, sources: Mapping[str, Source], edits: Edits, version: int, place: Path
) -> Vocabulary:
    """A checked vocabulary of entries; rubrics by skill. DiscoveryError for edits that make none."""
    used = {fields["skill"] for fields in entries.rubrics.values()}
    try:
        skills = tuple(
            Skill.model_validate({"id": name} | fields) for name, fields in entries.skills.items() if name in used
        )
        order = {skill.id: place for place, skill in enumerate(skills)}
        rubrics = [
            Rubric.model_validate({"id": name} | fields | {"source": _source(name, sources, edits)})
            for name, fields in entries.rubrics.items()
        ]
    except ValidationError as error:
        raise DiscoveryError(f"{place}: an entry does not hold: {error}") from None
    rubrics.sort(key=lambda rubric: order.get(rubric.skill, len(order)))
    environments = tuple(sorted({name for rubric in rubrics for name in rubric.environments}))
    refuse_contradictions(environments, skills, rubrics, place)
    return Vocabulary(version, environments, skills, tuple(rubrics))


def _source(name: str, sources: Mapping[str, Source], edits: Edits) -> Source | None:
    edited = tuple(edits.changed.get(name, ()))
    if name in edits.added:
        return Source(model="by hand")
    source = sources.get(name) or Source(model="an earlier draft")
    return source.model_copy(update={"edited": edited})


def document_of(vocabulary: Vocabulary, draft_hash: str) -> dict[str, Any]:
    """The file's content, defaults left out."""
    return {
        "version": vocabulary.version,
        "hash": vocabulary.hash,
        "draft": draft_hash,
        "environments": list(vocabulary.environments),
        "skills": [skill.model_dump(mode="json") for skill in vocabulary.skills],
        "rubrics": [rubric.model_dump(mode="json", exclude_defaults=True) for rubric in vocabulary.rubrics],
    }


def draft_path(work: Work, draft_hash: str) -> Path:
    return work.path("drafts") / f"{draft_hash[:12]}.yaml"


def _edits_so_far(work: Work) -> tuple[Vocabulary | None, Edits, Edits]:
    """The vocabulary as it stands, and what a person changed in its rubrics and its skills."""
    path = work.path(VOCABULARY)
    if not path.is_file():
        return None, Edits(), Edits()
    current = load_vocabulary(path, edited=True)
    if current.frozen_hash is None or current.draft_hash is None:
        raise DiscoveryError(f"{path} names no hash and no draft: it was not frozen here; move it away")
    base = draft_path(work, current.draft_hash)
    if not base.is_file():
        raise DiscoveryError(
            f"{base} is gone, the draft that {path} was frozen from: without it nobody knows what was edited. Restore "
            "it, or move the vocabulary away to start anew"
        )
    draft, now = Entries.of(load_vocabulary(base, edited=True)), Entries.of(current)
    return current, difference(draft.rubrics, now.rubrics), difference(draft.skills, now.skills)


def run(work: Work) -> Mapping[str, Any]:
    current, rubric_edits, skill_edits = _edits_so_far(work)
    entries, sources = draft_of(work)
    draft = vocabulary_of(entries, sources, Edits(), 1, work.path("skills.yaml"))
    now = Entries.of(current) if current is not None else Entries({}, {})
    rubrics, conflicts = applied(rubric_edits, entries.rubrics, now.rubrics)
    skills, more = applied(skill_edits, entries.skills, now.skills)
    for fields in rubrics.values():
        if fields["skill"] not in skills and fields["skill"] in now.skills:
            skills[fields["skill"]] = now.skills[fields["skill"]]
    version = current.version if current is not None else 1
    place = work.path(VOCABULARY)
    frozen = vocabulary_of(Entries(rubrics, skills), sources, rubric_edits, version, place)
    if current is not None and frozen.hash != current.frozen_hash:
        version += 1
        frozen = vocabulary_of(Entries(rubrics, skills), sources, rubric_edits, version, place)
    models = sorted({rubric.source.model for rubric in frozen.rubrics if rubric.source is not None})
    comment = "Frozen by rubric_discovery. Edit it by hand and freeze it again: edits stay, and edits.yaml lists them."
    if any(model.startswith(NO_DISCOVERY) for model in models):
        comment += f"\nFound by {', '.join(models)}: a stand-in or recorded replies, to try the steps. No discovery."
    write_yaml(draft_path(work, draft.hash), document_of(draft, draft.hash), "The machine's draft; not to be edited.")
    edits = {"rubrics": rubric_edits.to_plain(), "skills": skill_edits.to_plain(), "conflicts": conflicts + more}
    write_yaml(work.path(EDITS), edits, "What a person changed, and where a new draft changed it too.")
    write_yaml(place, document_of(frozen, draft.hash), comment)
    load_vocabulary(place)
    return {
        "counts": {"rubrics": len(frozen), "skills": len(frozen.skills), "version": version},
        "vocabulary_hash": frozen.hash,
        "draft_hash": draft.hash,
        "edited": sorted([*rubric_edits.changed, *rubric_edits.added, *rubric_edits.removed]),
        "conflicts": conflicts + more,
    }


STEP = Step(
    "freeze",
    ("merged.parquet", "members.parquet", "screen.parquet", "skills.yaml"),
    (VOCABULARY, EDITS),
    run,
    always=True,
)

if __name__ == "__main__":
    raise SystemExit(main_of(STEP, __doc__))
