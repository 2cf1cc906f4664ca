"""Edits by hand as a diff, and how a new draft takes them over.

What a person changed is the difference between the machine's last draft and the vocabulary as it stands. A new draft
is merged with it entry by entry and field by field: what the person changed stays, everything else follows the draft.
Where both changed the same field the person's word stands, and the record of the freeze names the conflict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rised.rubrics.vocabulary import Rubric, Skill, Vocabulary

RUBRIC_FIELDS = (
    *("skill", "polarity", "definition", "positive_example", "negative_example", "environments", "note"),
    "provenance",
)
SKILL_FIELDS = ("definition", "provenance")
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entries:
    """Rubrics and skills by id, in their order."""

    rubrics: dict[str, Fields]
    skills: dict[str, Fields]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Entries:
        return cls(
            {r.id: _fields(r, RUBRIC_FIELDS) for r in vocabulary.rubrics},
            {s.id: _fields(s, SKILL_FIELDS) for s in vocabulary.skills},
        )


def _fields(entry: Rubric | Skill, names: Sequence[str]) -> Fields:
    values = entry.model_dump(mode="json")
    return {name: values[name] for name in names}


@dataclass(slots=True)
class Edits:
    """Of one kind of entry. ``changed``: id -> field -> (draft's value, person's value)."""

    added: dict[str, Fields] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    changed: dict[str, dict[str, tuple[Any, Any]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def to_plain(self) -> dict[str, Any]:
        """For a file that a person reads."""
        changed = {
            name: {key: {"was": was, "is": now} for key, (was, now) in fields.items()}
            for name, fields in self.changed.items()
        }
        return {"added": self.added, "removed": self.removed, "changed": changed}


def difference(draft: Mapping[str, Fields], current: Mapping[str, Fields]) -> Edits:
    """What turned the draft into what stands."""
    changed = {}
    for name in draft:
        if name in current and draft[name] != current[name]:
            changed[name] = {
                key: (was, current[name][key]) for key, was in draft[name].items() if was != current[name][key]
            }
    added = {name: dict(fields) for name, fields in current.items() if name not in draft}
    return Edits(added, [name for name in draft if name not in current], changed)


def applied(
    edits: Edits, draft: Mapping[str, Fields], current: Mapping[str, Fields]
) -> tuple[dict[str, Fields], list[str]]:
    """A new draft with the edits, and a sentence for each that met a changed draft. ``current``: as the edits left it.

    An entry that a person has worked on stays, also where the new draft no longer has it.
    """
    conflicts = []
    result = {name: dict(fields) for name, fields in draft.items() if name not in edits.removed}
    for name, fields in edits.changed.items():
        if name not in result:
            conflicts.append(f"{name}: edited by hand, and the new draft does not have it; the entry stays")
            result[name] = dict(current[name])
            continue
        for key, (was, now) in fields.items():
            if result[name][key] not in (was, now):
                conflicts.append(f"{name}.{key}: edited by hand, and the new draft changed it too; the edit stands")
            result[name][key] = now
    for name, fields in edits.added.items():
        if name in result and result[name] != fields:
            conflicts.append(f"{name}: added by hand, and the new draft has it too; the entry by hand stands")
        result[name] = dict(fields)
    return result, conflicts
