"""The vocabulary file and its loader: what is shipped, and what is refused with which message."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rised.rubrics.base import RubricError
from rised.rubrics.judge_rules import load_detectors
from rised.rubrics.vocabulary import (
    DEFAULT_VOCABULARY,
    RUBRIC_COUNT,
    Polarity,
    Provenance,
    Vocabulary,
    load_vocabulary,
    with_table,
)
from rubric_discovery.embedding import tfidf

Edit = Callable[[dict[str, Any]], None]
OTHER = "Does something that no other rubric speaks of."


def written(tmp_path: Path, edit: Edit) -> Path:
    """A copy of the shipped file after an edit of its content."""
    yaml = YAML(typ="safe")
    document = yaml.load(DEFAULT_VOCABULARY)
    edit(document)
    path = tmp_path / "vocabulary.yaml"
    with path.open("w") as stream:
        yaml.dump(document, stream)
    return path


def test_the_shipped_vocabulary_has_exactly_59_rubrics_in_10_skills(vocabulary: Vocabulary) -> None:
    assert len(vocabulary) == 59 and len(set(vocabulary.rubric_ids)) == 59
    assert len(vocabulary.skills) == 10
    assert sum(len(vocabulary.of_skill(skill)) for skill in vocabulary.skill_ids) == 59


def test_edits_are_named_by_entry(tmp_path: Path, vocabulary: Vocabulary) -> None:
    names = vocabulary.rubric_ids

    def edit(document: dict[str, Any]) -> None:
        document["rubrics"][3]["positive_example"] = "Another case that shows it."
        document["rubrics"][5]["id"] = "does_a_new_thing"
        document["skills"][0]["definition"] = OTHER

    edited = load_vocabulary(written(tmp_path, edit))
    assert vocabulary.edits_since(vocabulary.entry_hashes) == ""
    assert edited.edits_since(vocabulary.entry_hashes) == (
        f"changed: skill {vocabulary.skill_ids[0]}, rubric {names[3]}; added: rubric does_a_new_thing; "
        f"removed: rubric {names[5]}"
    )


def test_every_name_of_the_paper_is_there_and_only_those_carry_its_mark(
    vocabulary: Vocabulary, repository: Path
) -> None:
    text = (repository / "data" / "paper" / "rised_tables3_4_rubrics.csv").read_text()
    rows = list(csv.DictReader(io.StringIO("".join(line for line in text.splitlines(True) if line[0] != "#"))))
    assert len(rows) == 7
    for row in rows:
        rubric = vocabulary[row["rubric"]]
        assert (rubric.skill, rubric.polarity.value) == (row["skill"], row["polarity"])
        assert row["environment"] in rubric.environments
    marked = {rubric.id for rubric in vocabulary.rubrics if rubric.provenance is Provenance.PAPER}
    assert marked == {row["rubric"] for row in rows}
    marked_skills = {skill.id for skill in vocabulary.skills if skill.provenance is Provenance.PAPER}
    assert marked_skills == {row["skill"] for row in rows}


def test_the_behaviours_that_figure_7_names_in_words_are_noted_as_our_names(vocabulary: Vocabulary) -> None:
    for rubric_id in ("claims_false_completion", "hallucinates_observation"):
        rubric = vocabulary[rubric_id]
        assert rubric.provenance is Provenance.OURS and "Figure 7" in rubric.note
        assert rubric.polarity is Polarity.NEGATIVE and "dbbench" in rubric.environments


def test_every_environment_has_wanted_and_unwanted_behaviours(vocabulary: Vocabulary) -> None:
    for environment in vocabulary.environments:
        assert len(vocabulary.applicable(environment, Polarity.POSITIVE)) >= 6
        assert len(vocabulary.applicable(environment, Polarity.NEGATIVE)) >= 6


def test_definitions_and_examples_are_never_reused(vocabulary: Vocabulary) -> None:
    examples = [text for rubric in vocabulary.rubrics for text in (rubric.positive_example, rubric.negative_example)]
    assert len(set(examples)) == len(examples)


def test_lookups_follow_the_order_of_the_file(vocabulary: Vocabulary) -> None:
    assert [vocabulary.index(rubric_id) for rubric_id in vocabulary.rubric_ids] == list(range(59))
    indices = [vocabulary.index(rubric.id) for rubric in vocabulary.applicable("webshop")]
    assert indices == sorted(indices)
    assert vocabulary.polarity("repeats_failed_action") is Polarity.NEGATIVE
    assert vocabulary.skill("repeats_failed_action") == "error_recovery_and_exploration"
    assert vocabulary.applies("explores_database_schema", "dbbench")
    assert not vocabulary.applies("explores_database_schema", "webshop")


def test_unknown_names_are_reported_with_what_is_known(vocabulary: Vocabulary) -> None:
    with pytest.raises(RubricError, match="'is_polite' is not in the vocabulary"):
        vocabulary["is_polite"]
    with pytest.raises(RubricError, match="'chess'.*it covers alfworld"):
        vocabulary.applicable("chess")
    with pytest.raises(RubricError, match="skill 'charm'"):
        vocabulary.of_skill("charm")


def test_the_hash_ignores_layout_and_sees_content_and_order(tmp_path: Path, vocabulary: Vocabulary) -> None:
    assert load_vocabulary(written(tmp_path, lambda document: None)).hash == vocabulary.hash

    def reword(document: dict[str, Any]) -> None:
        document["rubrics"][0]["definition"] = "Searches every place in the order of the list."

    assert load_vocabulary(written(tmp_path, reword)).hash != vocabulary.hash
    assert load_vocabulary(written(tmp_path, lambda document: document["rubrics"].reverse())).hash != vocabulary.hash


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d["rubrics"].append(dict(d["rubrics"][0])), "rubric id 'systematic_object_search' stands twice"),
        (
            lambda d: d["rubrics"].append(dict(d["rubrics"][0], id="objects_systematic_searches", definition=OTHER)),
            "rubrics 'systematic_object_search' and 'objects_systematic_searches' name one behaviour",
        ),
        (
            lambda d: d["rubrics"].append(
                dict(d["rubrics"][0], id="systematic_object_searching", definition=OTHER, polarity="negative")
            ),
            "name one behaviour with two polarities",
        ),
        (
            lambda d: d["rubrics"].append(
                dict(
                    d["rubrics"][1],
                    id="other_words",
                    definition=d["rubrics"][1]["definition"].replace("Searches", "Search"),
                )
            ),
            "name one behaviour",
        ),
        (
            lambda d: d["rubrics"][0].update(positive_example="It looks around.", negative_example="It looks around."),
            "its positive and its negative example say the same",
        ),
        (lambda d: d["skills"].append(dict(d["skills"][0], id="charm")), "skill 'charm' has no rubric"),
        (lambda d: d["rubrics"][3].update(skill="charm"), "skill 'charm' is not defined under skills"),
        (lambda d: d["rubrics"][3].update(environments=["webshp"]), r"\['webshp'\] are not listed"),
        (lambda d: d["rubrics"][3].update(environments=["alfworld", "alfworld"]), r"\['alfworld'\] stand twice"),
        (lambda d: d["rubrics"][3].update(environments=[]), r"vocabulary.yaml:\d+: rubrics\.3\.environments: "),
        (lambda d: d["rubrics"][3].update(polarity="bad"), r"vocabulary.yaml:\d+: rubrics\.3\.polarity: "),
        (lambda d: d["rubrics"][3].pop("definition"), r"rubrics\.3\.definition: this key is required"),
        (lambda d: d["rubrics"][3].update(definition=" "), r"rubrics\.3\.definition: "),
        (lambda d: d["rubrics"][3].update(id="Redundant Navigation"), r"rubrics\.3\.id: "),
        (lambda d: d["rubrics"][3].update(weight=2), r"rubrics\.3\.weight: unknown key"),
        (lambda d: d["rubrics"][3].update(provenance="them"), r"rubrics\.3\.provenance: "),
        (lambda d: d.update(version="1"), "version"),
        (lambda d: d.pop("skills"), "skills: this key is required"),
    ],
)
def test_a_faulty_vocabulary_is_refused_with_the_place(tmp_path: Path, edit: Edit, message: str) -> None:
    path = written(tmp_path, edit)
    with pytest.raises(RubricError, match=message) as caught:
        load_vocabulary(path)
    assert str(path) in str(caught.value)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.yaml"
    path.write_text(DEFAULT_VOCABULARY.read_text() + "version: 2\n")
    with pytest.raises(RubricError, match="version"):
        load_vocabulary(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RubricError, match="nowhere.yaml"):
        load_vocabulary(tmp_path / "nowhere.yaml")


def test_only_the_shipped_vocabulary_must_have_the_papers_size_unless_one_asks(tmp_path: Path) -> None:
    path = written(tmp_path, lambda document: document["rubrics"].pop())
    assert len(load_vocabulary(path)) == 58
    with pytest.raises(RubricError, match="58 rubrics, expected exactly 59"):
        load_vocabulary(path, rubric_count=RUBRIC_COUNT)


def test_every_rubric_is_decided_by_a_detector_somewhere(vocabulary: Vocabulary) -> None:
    detectors = load_detectors()
    undecided = {r.id for r in vocabulary.rubrics if not any(r.id in detectors[name] for name in r.environments)}
    assert not undecided, "what rules decide from a log can be observed"


def test_every_environment_has_wanted_and_unwanted_behaviours_of_half_the_skills(vocabulary: Vocabulary) -> None:
    for environment in vocabulary.environments:
        for polarity in Polarity:
            assert len(vocabulary.applicable(environment, polarity)) >= 8
        assert len({rubric.skill for rubric in vocabulary.applicable(environment)}) >= 5


def test_no_two_rubrics_of_one_polarity_are_alike_in_words(vocabulary: Vocabulary) -> None:
    vectors = tfidf([f"{rubric.words}: {rubric.definition}" for rubric in vocabulary.rubrics])
    similarity = vectors @ vectors.T
    rubrics = vocabulary.rubrics
    pairs = [(i, j) for i in range(len(rubrics)) for j in range(i) if rubrics[i].polarity is rubrics[j].polarity]
    assert max(similarity[i, j] for i, j in pairs) < 0.5, "below what discovery would merge"


def test_the_documented_table_is_the_vocabulary(repository: Path, vocabulary: Vocabulary) -> None:
    text = (repository / "docs" / "rubrics.md").read_text(encoding="utf-8")
    assert with_table(text, vocabulary) == text, (
        "docs/rubrics.md is out of date: run `python -m rised.rubrics.vocabulary docs/rubrics.md`"
    )
    assert all(f"| `{rubric.id}` |" in text for rubric in vocabulary.rubrics)


def test_a_document_without_markers_is_not_touched(vocabulary: Vocabulary) -> None:
    with pytest.raises(RubricError, match="exactly once each"):
        with_table("no table here", vocabulary)


def test_the_vocabulary_imports_neither_torch_nor_pandas() -> None:
    code = (
        "import sys, rised.rubrics.vocabulary as v; v.load_vocabulary(); "
        "print([name for name in ('torch', 'pandas', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
