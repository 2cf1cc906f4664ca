"""The rubric vocabulary: which behaviours exist, what they mean, and where they apply.

The file ``data/vocabulary.yaml`` is the one place that defines rubrics; this module reads, checks and indexes it. It
knows no detectors and no tags, and imports neither torch nor pandas, so that the analysis can use it alone.
``python -m rised.rubrics.vocabulary`` prints the table that stands in ``docs/rubrics.md``; with that file as its
argument it renews the table in place.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rised.config.errors import ConfigError
from rised.config.loader import load
from rised.config.paths import shipped
from rised.rubrics.base import RubricError

DEFAULT_VOCABULARY = Path(__file__).resolve().parents[2] / "data" / "vocabulary.yaml"
RUBRIC_COUNT = 59
"""Rubrics in the paper's vocabulary."""
SKILL_COUNT = 10
TABLE_BEGIN = "<!-- vocabulary: begin -->"
TABLE_END = "<!-- vocabulary: end -->"

_IDENTIFIER = r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$"


class Polarity(StrEnum):
    """Whether a behaviour is wanted."""

    POSITIVE = "positive"
    """Exhibiting it is tagged ``demonstrates``; a clear opposite may be tagged ``violates``."""
    NEGATIVE = "negative"
    """Exhibiting it is tagged ``violates``; ``demonstrates`` does not exist for it."""


class Provenance(StrEnum):
    """Who named an entry."""

    PAPER = "paper"
    """The name stands in our source documents (RISED, Tables 3 and 4)."""
    OURS = "ours"
    """Our own reconstruction."""
    DISCOVERED = "discovered"
    """Found in rollouts by ``rubric_discovery``."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=_IDENTIFIER)
    definition: str = Field(min_length=20, max_length=200, pattern=r"^[A-Z][^\n]*\.$")
    provenance: Provenance


class Source(BaseModel):
    """Where a discovered entry comes from. It says nothing of the meaning and is no part of the hash.

    ``model``: who found it; a stand-in says so (``scripted:…``, ``recorded:…``). ``prevalence``, ``kappa`` and
    ``outcome_correlation``: what the screens measured. ``edited``: fields that a person changed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    observations: tuple[str, ...] = ()
    merged_from: tuple[str, ...] = ()
    prevalence: float | None = None
    kappa: float | None = None
    outcome_correlation: float | None = None
    edited: tuple[str, ...] = ()


class Skill(_Entry):
    """A family of rubrics. Skill profiles average over its members."""


class Rubric(_Entry):
    """One observable behaviour. ``negative_example`` is close to it and does not show it."""

    skill: str
    polarity: Polarity
    positive_example: str = Field(min_length=10)
    negative_example: str = Field(min_length=10)
    environments: tuple[str, ...] = Field(min_length=1)
    note: str = ""
    source: Source | None = None

    @property
    def words(self) -> str:
        """The id as plain words, as prompts and tables show it."""
        return self.id.replace("_", " ")


class _Document(BaseModel):
    """The file as written. A frozen one holds its own ``hash`` and that of the ``draft`` that it was frozen from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = Field(ge=1, strict=True)
    hash: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    draft: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    environments: tuple[str, ...] = Field(min_length=1)
    skills: tuple[Skill, ...] = Field(min_length=1)
    rubrics: tuple[Rubric, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Vocabulary:
    """A checked vocabulary. The order of ``rubrics`` and ``skills`` is the order of the profile components.

    ``frozen_hash`` and ``draft_hash``: as they stand in the file of a frozen vocabulary, else None.
    """

    version: int
    environments: tuple[str, ...]
    skills: tuple[Skill, ...]
    rubrics: tuple[Rubric, ...]
    frozen_hash: str | None = None
    draft_hash: str | None = None

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the content and its order; layout and comments of the file do not enter."""
        content = {
            "version": self.version,
            "environments": list(self.environments),
            "skills": [skill.model_dump(mode="json") for skill in self.skills],
            "rubrics": [_content(rubric) for rubric in self.rubrics],
        }
        return _hash(content)

    @cached_property
    def entry_hashes(self) -> dict[str, str]:
        """``rubric <id>`` and ``skill <id>`` -> beginning of a SHA-256 (hex) of the entry, in the file's order."""
        skills = {f"skill {skill.id}": _hash(skill.model_dump(mode="json")) for skill in self.skills}
        rubrics = {f"rubric {rubric.id}": _hash(_content(rubric)) for rubric in self.rubrics}
        return {name: value[:16] for name, value in (skills | rubrics).items()}

    def edits_since(self, entry_hashes: Mapping[str, str]) -> str:
        """What differs from a vocabulary with these :attr:`entry_hashes`, in words; "" if no entry does."""
        now = self.entry_hashes
        found = {
            "changed": [name for name in now if name in entry_hashes and now[name] != entry_hashes[name]],
            "added": [name for name in now if name not in entry_hashes],
            "removed": [name for name in entry_hashes if name not in now],
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in found.items() if names)

    @cached_property
    def rubric_ids(self) -> tuple[str, ...]:
        return tuple(rubric.id for rubric in self.rubrics)

    @cached_property
    def skill_ids(self) -> tuple[str, ...]:
        return tuple(skill.id for skill in self.skills)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {rubric_id: index for index, rubric_id in enumerate(self.rubric_ids)}

    def __len__(self) -> int:
        return len(self.rubrics)

    def __contains__(self, rubric_id: object) -> bool:
        return rubric_id in self._index

    def index(self, rubric_id: str) -> int:
        """Position of a rubric in the profile."""
        try:
            return self._index[rubric_id]
        except KeyError:
            raise RubricError(
                f"rubric {rubric_id!r} is not in the vocabulary (version {self.version}, hash {self.hash[:12]})"
            ) from None

    def __getitem__(self, rubric_id: str) -> Rubric:
        return self.rubrics[self.index(rubric_id)]

    def polarity(self, rubric_id: str) -> Polarity:
        return self[rubric_id].polarity

    def skill(self, rubric_id: str) -> str:
        return self[rubric_id].skill

    def of_skill(self, skill_id: str) -> tuple[Rubric, ...]:
        """The rubrics of one skill, in order."""
        if skill_id not in self.skill_ids:
            raise RubricError(f"skill {skill_id!r} is not in the vocabulary; known: {', '.join(self.skill_ids)}")
        return tuple(rubric for rubric in self.rubrics if rubric.skill == skill_id)

    def applicable(self, environment: str, polarity: Polarity | None = None) -> tuple[Rubric, ...]:
        """The rubrics that apply to an environment, in order, optionally of one polarity only."""
        if environment not in self.environments:
            raise RubricError(
                f"the vocabulary says nothing of environment {environment!r}; it covers {', '.join(self.environments)}"
            )
        return tuple(
            rubric
            for rubric in self.rubrics
            if environment in rubric.environments and polarity in (None, rubric.polarity)
        )

    def applies(self, rubric_id: str, environment: str) -> bool:
        return environment in self[rubric_id].environments


def _content(rubric: Rubric) -> dict[str, Any]:
    return rubric.model_dump(mode="json", exclude={"source"})


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _duplicates(values: Iterable[str]) -> list[str]:
    return sorted(value for value, count in Counter(values).items() if count > 1)


def refuse_contradictions(
    environments: Sequence[str],
    skills: Sequence[Skill],
    rubrics: Sequence[Rubric],
    place: Path,
    *,
    rubric_count: int | None = None,
    skill_count: int | None = None,
) -> None:
    """RubricError that lists everything in which the entries contradict each other; ``place``: their file."""
    found = _contradictions(environments, skills, rubrics)
    for kind, count, wanted in (("rubrics", len(rubrics), rubric_count), ("skills", len(skills), skill_count)):
        if wanted is not None and count != wanted:
            found.append(f"{count} {kind}, expected exactly {wanted}")
    if found:
        raise RubricError("the vocabulary is not usable:\n" + "\n".join(f"{place}: {problem}" for problem in found))


def _contradictions(environments: Sequence[str], skills: Sequence[Skill], rubrics: Sequence[Rubric]) -> list[str]:
    """What a schema cannot see: repeated entries, names that point nowhere, skills without members, two polarities."""
    found: list[str] = []
    skill_ids = [skill.id for skill in skills]
    for kind, values in (
        ("rubric id", [rubric.id for rubric in rubrics]),
        ("rubric definition", [rubric.definition for rubric in rubrics]),
        ("skill id", skill_ids),
        ("environment", environments),
    ):
        found += [f"{kind} {value!r} stands twice" for value in _duplicates(values)]
    for rubric in rubrics:
        if rubric.skill not in skill_ids:
            found.append(f"rubric {rubric.id!r}: skill {rubric.skill!r} is not defined under skills")
        unknown = sorted(set(rubric.environments) - set(environments))
        if unknown:
            found.append(f"rubric {rubric.id!r}: environments {unknown} are not listed under environments")
        if _duplicates(rubric.environments):
            found.append(f"rubric {rubric.id!r}: environments {_duplicates(rubric.environments)} stand twice")
        if rubric.positive_example.casefold() == rubric.negative_example.casefold():
            found.append(f"rubric {rubric.id!r}: its positive and its negative example say the same")
    used = {rubric.skill for rubric in rubrics}
    found += [f"skill {skill!r} has no rubric" for skill in skill_ids if skill not in used]
    return found + _alike(rubrics)


def _alike(rubrics: Sequence[Rubric]) -> list[str]:
    """Pairs of rubrics that differ in word order, case, articles or inflection alone, in name or in definition."""
    found = []
    for text in ("words", "definition"):
        seen: dict[frozenset[str], Rubric] = {}
        for rubric in rubrics:
            other = seen.setdefault(_words(getattr(rubric, text)), rubric)
            if other.id == rubric.id:
                continue
            if other.polarity is rubric.polarity:
                found.append(f"rubrics {other.id!r} and {rubric.id!r} name one behaviour")
            else:
                found.append(
                    f"rubrics {other.id!r} and {rubric.id!r} name one behaviour with two polarities: a positive rubric "
                    "has `violates` for its opposite"
                )
    return list(dict.fromkeys(found))


_ARTICLES = frozenset({"a", "an", "the", "its", "their"})


def _words(text: str) -> frozenset[str]:
    """What a text is about: its words without articles, number and inflection."""
    found = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return frozenset(_stem(word) for word in found if word not in _ARTICLES)


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)].rstrip("e")
    return word.rstrip("e") if len(word) > 4 else word


def load_vocabulary(
    path: Path = DEFAULT_VOCABULARY,
    *,
    rubric_count: int | None = None,
    skill_count: int | None = None,
    edited: bool = False,
) -> Vocabulary:
    """Read and check a vocabulary file. Counts: as many as there must be; the shipped vocabulary has the paper's.

    ``edited`` accepts a frozen vocabulary that a person has changed since. Raises RubricError that lists every fault
    with its place in the file.
    """
    path = shipped(path)
    if path.resolve() == DEFAULT_VOCABULARY:
        rubric_count, skill_count = rubric_count or RUBRIC_COUNT, skill_count or SKILL_COUNT
    try:
        document = load(_Document, [path])
    except ConfigError as error:
        raise RubricError(f"the vocabulary is not usable:\n{error}") from error
    refuse_contradictions(
        document.environments,
        document.skills,
        document.rubrics,
        path,
        rubric_count=rubric_count,
        skill_count=skill_count,
    )
    made = Vocabulary(
        document.version, document.environments, document.skills, document.rubrics, document.hash, document.draft
    )
    if made.frozen_hash not in (None, made.hash) and not edited:
        raise RubricError(
            f"{path} was changed after it was frozen (hash {made.hash[:12]}, the file says "
            f"{str(made.frozen_hash)[:12]}): freeze it again with `python -m rubric_discovery.freeze`"
        )
    return made


def markdown_table(vocabulary: Vocabulary) -> str:
    """The vocabulary as Markdown, one table per skill, with each entry's mark (paper or ours)."""
    lines = [f"{len(vocabulary)} rubrics in {len(vocabulary.skills)} skills, version {vocabulary.version}."]
    for skill in vocabulary.skills:
        lines += ["", f"### {skill.id} [{skill.provenance}]", "", skill.definition, ""]
        lines += ["| rubric | polarity | definition | environments | name |", "| --- | --- | --- | --- | --- |"]
        for rubric in vocabulary.of_skill(skill.id):
            definition = f"{rubric.definition} {rubric.note}".strip().replace("|", "\\|")
            environments = ", ".join(rubric.environments)
            mark = f"[{rubric.provenance}]"
            lines.append(f"| `{rubric.id}` | {rubric.polarity} | {definition} | {environments} | {mark} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, vocabulary: Vocabulary) -> str:
    """A document with the table between its two marker comments renewed."""
    try:
        head, rest = text.split(TABLE_BEGIN)
        _, tail = rest.split(TABLE_END)
    except ValueError:
        raise RubricError(f"the document needs {TABLE_BEGIN!r} and {TABLE_END!r} exactly once each") from None
    return f"{head}{TABLE_BEGIN}\n{markdown_table(vocabulary)}{TABLE_END}{tail}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or renew it in the Markdown files that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m rised.rubrics.vocabulary", description="Print the vocabulary's table, or renew it in documents"
    )
    parser.add_argument(
        "documents", type=Path, nargs="*", metavar="FILE", help="Markdown file with the table's markers"
    )
    documents: list[Path] = parser.parse_args(arguments).documents
    try:
        vocabulary = load_vocabulary()
        if not documents:
            print(markdown_table(vocabulary), end="")
        for document in documents:
            document.write_text(with_table(document.read_text(encoding="utf-8"), vocabulary), encoding="utf-8")
    except (RubricError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
