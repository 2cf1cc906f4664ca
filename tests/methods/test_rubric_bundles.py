"""Rubric bundles: reading, drawing, scoring, alignment, and which groups get a teacher and why the others do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_examples import group, rollout, tags_of, vocabulary
from scipy.stats import spearmanr

from rised.config.overlays import compose
from rised.config.source import plain_value
from rised.methods.base import PromptGroup
from rised.methods.bundles.alignment import best_aligned, satisfaction, spearman
from rised.methods.bundles.base import Criterion
from rised.methods.bundles.replies import UnreadableBundle, read_criteria
from rised.methods.composition import Method
from rised.methods.errors import MethodError
from rised.methods.registry import build, piece_settings
from rised.methods.settings import MethodSettings
from rised.methods.teachers.rubric_bundle import RubricBundleTeacher
from rised.models.writing import WritingRequest, Written
from rised.records.types import BundleStatus, CreditState, RubricBundle, Tag, TagState, TagStatus, Turn
from rised.rubrics.verifier_llm import BundleScores, Question
from rised.rubrics.vocabulary import Polarity
from rised.rubrics.windows import TagWindow
from stages.desk import bundle_metrics

POSITIVE = [r.id for r in vocabulary().applicable("alfworld", Polarity.POSITIVE)]
NEGATIVE = [r.id for r in vocabulary().applicable("alfworld", Polarity.NEGATIVE)]
SHOWS, BREAKS, ABSENT = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT
TAGS = {"writer": {"type": "vocabulary"}, "verifier": {"type": "tags"}}
LIST = "\n".join(f"{n}. Check the {word} first." for n, word in enumerate("price size color shelf drawer".split(), 1))


class Desk:
    """Answers from lists; keeps what it was asked."""

    verifier_id = "verifier:test"

    def __init__(self, texts: Sequence[Written] = (), scores: Sequence[BundleScores] = ()) -> None:
        self.texts, self.scores = list(texts), list(scores)
        self.requests: list[WritingRequest] = []
        self.questions: list[Question] = []

    def write(self, requests: Sequence[WritingRequest]) -> list[list[Written]]:
        self.requests += requests
        return [[self.texts.pop(0) for _ in request.seeds] for request in requests]

    def verify(self, questions: Sequence[Question], prompt: str) -> list[BundleScores]:
        self.questions += questions
        return [self.scores.pop(0) for _ in questions]


def teacher(**settings: Any) -> RubricBundleTeacher:
    found = piece_settings("teacher", {"type": "rubric_bundle", **settings})
    built: RubricBundleTeacher = build("teacher", found, vocabulary=vocabulary())
    return built


def tagged(group_id: str, rewards: Sequence[float | None], states: Sequence[dict[str, TagState]]) -> PromptGroup:
    """A group whose i-th rollout shows the i-th states."""
    rollouts = tuple(rollout(f"{group_id}/{i}", reward=reward) for i, reward in enumerate(rewards))
    tags = [t for one, found in zip(rollouts, states, strict=True) for t in tags_of(one.rollout_id, found)]
    return PromptGroup(group_id, "alfworld", rollouts, tuple(tags))


def played(group_id: str, *rewards: float) -> PromptGroup:
    """A group whose rollouts have one turn each, and no tags."""
    turn = Turn("Your task is to: find a pen.", "look", "look", True, 2, 5, False)
    rollouts = group(group_id, rewards=list(rewards)).rollouts
    return PromptGroup(
        group_id,
        "alfworld",
        tuple(dataclasses.replace(r, turns=(turn,), final_observation="reward 1.0") for r in rollouts),
    )


# ---- reading a reply


def test_a_numbered_list_is_read_whatever_stands_around_it() -> None:
    text = f"<think>1. not this</think>\nHere is the rubric:\n\n{LIST}\n   and the second line.\n\nGood luck!"
    found = read_criteria(text, 5, 8)
    assert len(found) == 5 and found[0] == "Check the price first."
    assert found[4] == "Check the drawer first. and the second line."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 criteria, wanted are 5 to 8"),
        ("I would rather not.", "0 criteria"),
        (LIST.replace("3.", "4."), "number 4 follows criterion 2"),
        ("\n".join(f"{n}. Check {n}." for n in range(1, 10)), "9 criteria, wanted are 5 to 8"),
        (LIST.replace("size", "price"), "a criterion stands twice"),
        (LIST.replace("size", "x" * 700), "criterion 2 has 7"),
    ],
)
def test_a_reply_that_is_no_bundle_says_why(text: str, reason: str) -> None:
    with pytest.raises(UnreadableBundle, match=reason):
        read_criteria(text, 5, 8)


# ---- alignment


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=8))
def test_alignment_is_scipys_spearman_where_defined_and_none_where_not(pairs: list[tuple[int, int]]) -> None:
    first, second = [a / 4 for a, _ in pairs], [b / 3 for _, b in pairs]
    found = spearman(first, second)
    if len(set(first)) < 2 or len(set(second)) < 2:
        assert found is None
    else:
        assert found == pytest.approx(spearmanr(first, second).statistic)


def test_rollouts_without_a_score_or_a_reward_are_left_out_of_the_correlation() -> None:
    assert spearman([0.1, None, 0.9, 0.5], [0.0, 1.0, 1.0, None]) == pytest.approx(1.0)
    assert spearman([0.1, None, None], [0.0, 1.0, 1.0]) is None


def test_sums_in_another_order_are_ties() -> None:
    one, other = satisfaction([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
    assert spearman([one, other], [0.0, 1.0]) is None


def test_the_best_aligned_bundle_wins_the_first_of_equals_even_when_all_are_negative() -> None:
    both = [True, True]
    assert best_aligned(both, both, [0.2, 0.7]).index == 1
    assert best_aligned(both, both, [0.7, 0.7 + 1e-15]).index == 0
    assert best_aligned(both, both, [-0.9, -0.3]).index == 1
    assert best_aligned(both, both, [None, -1.0]).index == 1
    assert best_aligned(both, both, [None, None]).state is CreditState.CONSTANT_SATISFACTION
    assert best_aligned(both, [False, False], [None, None]).state is CreditState.NOT_VERIFIED
    assert best_aligned([False, False], [False, False], [None, None]).state is CreditState.NO_BUNDLE


# ---- the vocabulary's writer and the tags as verifier


def telling_states(count: int) -> list[dict[str, TagState]]:
    """Of the positives the first ten are shown by the first half of the rollouts alone; one more is shown by all."""
    return [
        dict.fromkeys(POSITIVE[:10], SHOWS if i < count // 2 else ABSENT) | {POSITIVE[10]: SHOWS} for i in range(count)
    ]


def test_vocabulary_bundles_hold_five_to_eight_rubrics_that_the_rollouts_tell_apart() -> None:
    shown = tagged("g", [1.0, 1.0, 0.0, 0.0], telling_states(4))
    records = teacher(**TAGS).study([shown], Desk(), step=3, seed=1)
    assert [r.index for r in records] == [0, 1, 2, 3] and {r.status for r in records} == {BundleStatus.OK}
    for record in records:
        assert 5 <= len(record.rubric_ids) <= 8 and set(record.rubric_ids) <= set(POSITIVE[:10])
        assert record.alignment == pytest.approx(1.0) and record.satisfaction == (1.0, 1.0, 0.5, 0.5)
    assert len({r.rubric_ids for r in records}) > 1, "drafts differ"
    assert [r.chosen for r in records] == [True, False, False, False]


def test_drafts_depend_on_seed_step_and_group_alone() -> None:
    shown = tagged("g", [1.0, 0.0], telling_states(2))
    other = tagged("h", [1.0, 0.0], telling_states(2))

    def drawn(groups: list[PromptGroup], step: int, seed: int) -> list[tuple[str, ...]]:
        return [r.rubric_ids for r in teacher(**TAGS).study(groups, Desk(), step, seed) if r.group_id == "g"]

    assert drawn([shown], 1, 0) == drawn([other, shown], 1, 0)
    assert len({tuple(drawn([shown], step, seed)) for step, seed in ((1, 0), (2, 0), (1, 1))}) == 3


def test_a_tag_error_is_no_score_and_a_mostly_unreadable_group_is_not_scored_at_all() -> None:
    states = telling_states(6)
    shown = tagged("g", [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], states)
    failed = Tag("g/5", POSITIVE[0], None, None, "judge", TagStatus.PARSE_ERROR)
    keep = [t for t in shown.tags if t.rollout_id != "g/5"]
    records = teacher(**TAGS).study([dataclasses.replace(shown, tags=(*keep, failed))], Desk(), 0, 0)
    assert records[0].scores[5] == () and records[0].satisfaction[5] is None
    assert records[0].alignment == pytest.approx(spearmanr([1, 1, 1, 0, 0], [1, 1, 1, 0, 0]).statistic)
    few = tuple(t for t in shown.tags if t.rollout_id in ("g/0", "g/3"))
    records = teacher(**TAGS).study([dataclasses.replace(shown, tags=few)], Desk(), 0, 0)
    assert {r.status for r in records} == {BundleStatus.UNTAGGED} and not records[0].scores
    assert {r.group_state for r in records} == {CreditState.NOT_VERIFIED}


def test_a_negative_rubric_asks_to_avoid_and_is_met_where_it_is_absent() -> None:
    states = [{NEGATIVE[0]: BREAKS, POSITIVE[0]: BREAKS}, {NEGATIVE[0]: ABSENT, POSITIVE[0]: ABSENT}]
    (record, *_) = teacher(**TAGS).study([tagged("g", [0.0, 1.0], states)], Desk(), 0, 0)
    by_id = dict(zip(record.rubric_ids, zip(*record.scores, strict=True), strict=True))
    assert by_id == {NEGATIVE[0]: (0.0, 1.0), POSITIVE[0]: (0.0, 0.5)}
    assert [c.startswith("avoid: ") for c in record.criteria] == [i == NEGATIVE[0] for i in record.rubric_ids]


def test_tags_cannot_score_what_is_no_rubric_of_the_vocabulary() -> None:
    with pytest.raises(ValueError, match="`tags` scores rubrics of the vocabulary only"):
        teacher(writer={"type": "policy"}, verifier={"type": "tags"})
    with pytest.raises(MethodError, match="use the verifier `judge`"):
        from rised.methods.bundles.base import Draft

        verifier = build("verifier", piece_settings("verifier", {"type": "tags"}), vocabulary=vocabulary())
        verifier.scored([(group("g"), Draft((Criterion("Look first."),)))], Desk())


# ---- skipped groups


def test_groups_whose_correlation_is_undefined_are_skipped_and_counted_and_keep_their_advantage() -> None:
    states = telling_states(2)
    groups = [
        tagged("given", [1.0, 0.0], states),
        tagged("equal", [1.0, 1.0], states),
        tagged("alone", [1.0, None], states),
        tagged("alike", [1.0, 0.0], [states[0], states[0]]),
    ]
    one = teacher(**TAGS)
    records = one.study(groups, Desk(), 0, 0)
    found = {r.group_id: r.group_state for r in records}
    assert found == {
        "given": CreditState.GIVEN,
        "equal": CreditState.CONSTANT_REWARDS,
        "alone": CreditState.BELOW_TWO_REWARDS,
        "alike": CreditState.NO_BUNDLE,
    }
    assert {r.group_id for r in records if r.status is BundleStatus.NOT_ASKED} == {"equal", "alone"}
    contexts = {g.group_id: one.contexts(g, TagWindow(5), "compact") for g in groups}
    assert all(c is not None for c in contexts.pop("given"))
    assert contexts == {name: [None, None] for name in ("equal", "alone", "alike")}
    metrics = {m.name: m.value for m in bundle_metrics(7, records)}
    assert metrics["bundles/groups/constant_rewards"] == metrics["bundles/groups/below_two_rewards"] == 1
    assert metrics["bundles/groups/no_bundle"] == 1 and metrics["bundles/groups/not_verified"] == 0
    assert (metrics["bundles/skipped_groups"], metrics["bundles/credit_share"]) == (3, 0.25)
    assert metrics["bundles/status/no_criteria"] == 4 and metrics["bundles/chosen_alignment"] == pytest.approx(1.0)
    assert bundle_metrics(7, []) == []


def test_a_bundle_that_all_rollouts_satisfy_alike_gives_no_credit() -> None:
    alike = BundleScores(((1.0,) * 5, (1.0,) * 5))
    desk = Desk([Written(LIST, True)] * 4, [alike] * 4)
    records = teacher().study([played("g", 0.0, 1.0)], desk, 0, 0)
    assert {r.group_state for r in records} == {CreditState.CONSTANT_SATISFACTION} and not any(
        r.chosen for r in records
    )


def test_contexts_before_the_study_are_refused() -> None:
    one = teacher(**TAGS)
    with pytest.raises(MethodError, match="were not studied in this step"):
        one.contexts(group("g"), TagWindow(5), "compact")
    one.study([tagged("g", [1.0, 0.0], telling_states(2))], Desk(), 0, 0)
    one.study([tagged("h", [1.0, 0.0], telling_states(2))], Desk(), 1, 0)
    with pytest.raises(MethodError, match="group g"):
        one.contexts(group("g"), TagWindow(5), "compact")


# ---- the policy as writer, a judge as verifier


def test_the_policy_is_asked_with_the_attempts_and_without_a_word_about_rewards() -> None:
    desk = Desk([Written(LIST, True)] * 4, [BundleScores(((0.0,) * 5, (1.0,) * 5))] * 4)
    one = teacher()
    records = one.study([played("g", 0.0, 1.0)], desk, step=2, seed=5)
    (request,) = desk.requests
    assert request.user.count("Your task is to: find a pen.") == 3 and "Attempt 2" in request.user
    assert "reward 1.0" not in request.user + request.system and "success" not in request.user
    assert (request.temperature, request.top_p, request.max_new_tokens, len(set(request.seeds))) == (0.3, 0.9, 4096, 4)
    assert desk.questions[0].criteria == read_criteria(LIST, 5, 8) and len(desk.questions) == 4
    assert (records[0].verifier, records[0].reply, records[0].alignment) == ("verifier:test", LIST, pytest.approx(1.0))
    (context, _) = one.contexts(played("g", 0.0, 1.0), TagWindow(5), "full")
    assert context is not None and context.text.splitlines()[1:] == LIST.splitlines()


def test_replies_that_are_no_bundle_are_states_and_the_others_are_used() -> None:
    texts = [Written("no", True), Written(LIST, False), Written("", False, fits=False), Written(LIST, True)]
    desk = Desk(texts, [BundleScores(((1.0,) * 5, (0.0,) * 5))])
    records = teacher().study([played("g", 0.0, 1.0)], desk, 0, 0)
    assert [r.status for r in records] == [
        BundleStatus.UNREADABLE,
        BundleStatus.CUT,
        BundleStatus.TOO_LONG,
        BundleStatus.OK,
    ]
    assert [r.chosen for r in records] == [False, False, False, True] and records[3].alignment == pytest.approx(-1.0)
    assert records[0].reply == "no" and "0 criteria" in records[0].reason


def test_a_verifier_that_fails_is_no_score_and_the_group_says_so() -> None:
    failed = BundleScores((), TagStatus.TIMEOUT, "no reply within 5 s")
    records = teacher(candidates=2).study([played("g", 0.0, 1.0)], Desk([Written(LIST, True)] * 2, [failed] * 2), 0, 0)
    assert {(r.status, r.reason) for r in records} == {(BundleStatus.VERIFIER_TIMEOUT, "no reply within 5 s")}
    assert {r.group_state for r in records} == {CreditState.NOT_VERIFIED}


# ---- variants


def test_without_alignment_the_one_bundle_is_used_as_it_is_also_where_rewards_are_equal() -> None:
    one = teacher(candidates=1, choice="first", verifier={"type": "none"})
    desk = Desk([Written(LIST, True)] * 2)
    records = one.study([played("g", 0.0, 1.0), played("h", 1.0, 1.0)], desk, 0, 0)
    assert [(r.chosen, r.alignment, r.scores) for r in records] == [(True, None, ())] * 2 and not desk.questions
    assert all(one.contexts(played("h", 1.0, 1.0), TagWindow(5), "compact"))


def test_a_random_choice_is_seeded_and_does_not_look_at_the_scores() -> None:
    shown = [tagged(f"g{i}", [1.0, 0.0], telling_states(2)) for i in range(12)]
    scored = teacher(choice="random", **TAGS)
    blind = teacher(choice="random", writer={"type": "vocabulary"}, verifier={"type": "none"})

    def kept(one: RubricBundleTeacher, step: int) -> list[int]:
        return [r.index for r in one.study(shown, Desk(), step, 0) if r.chosen]

    assert kept(scored, 0) == kept(blind, 0) == kept(scored, 0) != kept(scored, 1)
    assert set(kept(scored, 0)) == {0, 1, 2, 3}


def test_the_offline_bundle_is_one_for_each_environment_whatever_the_rollouts_do() -> None:
    one = teacher(candidates=1, choice="first", writer={"type": "fixed"}, verifier={"type": "none"})
    a, b = tagged("a", [1.0, 0.0], telling_states(2)), group("b", rewards=[1.0, 1.0])
    shop = group("c", environment="webshop")
    found = {(s, r.group_id): r.rubric_ids for s in (1, 2) for r in one.study([a, b, shop], Desk(), s, 0)}
    assert found[1, "a"] == found[1, "b"] == found[2, "a"] != found[1, "c"] and len(found[1, "a"]) == 8
    assert not one.needs_tags and all(vocabulary().applies(i, "webshop") for i in found[1, "c"])


def test_a_choice_by_alignment_needs_a_verifier() -> None:
    with pytest.raises(ValueError, match="choice `alignment` needs scores"):
        teacher(verifier={"type": "none"})


# ---- in a method


def shipped(repository: Path, name: str, **overlay: Any) -> Method:
    document: dict[str, Any] = plain_value(compose([repository / "configs/methods" / f"{name}.yaml"]))["method"]
    document["teacher"] = {**document["teacher"], **overlay}
    return Method.from_settings(MethodSettings.model_validate(document), vocabulary())


class Rendering:
    """Encodes a hint as one id per character."""

    def hint_prefix(self, text: str) -> list[int]:
        return [ord(character) for character in text]


@pytest.mark.parametrize(
    ("name", "alpha", "choice", "candidates"),
    [
        ("orsd", 0.01, "alignment", 4),
        ("orsd_alpha_0001", 0.001, "alignment", 4),
        ("orsd_alpha_01", 0.1, "alignment", 4),
        ("orsd_random_rubric", 0.01, "random", 4),
        ("orsd_without_alignment", 0.01, "first", 1),
        ("orsd_offline_rubric", 0.01, "first", 1),
    ],
)
def test_the_shipped_variants_differ_in_what_the_paper_varies(
    repository: Path, name: str, alpha: float, choice: str, candidates: int
) -> None:
    built = shipped(repository, name)
    teacher_settings: Any = built.settings.teacher
    assert built.advantage.gap_weight == alpha
    assert (teacher_settings.choice, teacher_settings.candidates) == (choice, candidates)
    assert [t.name for t in built.loss_terms()] == ["rl", "reference_kl"]


def test_in_a_method_skipped_groups_carry_no_prefix_and_the_share_of_corrected_tokens_is_counted(
    repository: Path,
) -> None:
    built = shipped(repository, "orsd", **TAGS)
    assert built.needs_tags
    groups = [tagged("a", [1.0, 0.0], telling_states(2)), tagged("b", [1.0, 1.0], telling_states(2))]
    built.study(groups, Desk(), 0, 0)
    sequences = built.training_sequences(groups, TagWindow(5), Rendering(), "compact")
    assert [s.teacher_prefix_ids is not None for s in sequences] == [True, True, False, False]
    metrics = {m.name: m.value for m in built.metrics(0, groups, sequences)}
    assert metrics["method/corrected_token_share"] == 0.5 and metrics["method/selected_groups_with_teacher"] == 1
    (rl, _) = built.loss_terms()
    assert [rl.moves(s) for s in sequences] == [True, True, False, False] and all(rl.applies_to(s) for s in sequences)


def test_the_prompts_of_writer_and_verifier_belong_to_the_runs_identity(repository: Path) -> None:
    assert sorted(shipped(repository, "orsd").prompts()) == ["bundle_verifier", "bundle_writer"]
    assert shipped(repository, "orsd", **TAGS).prompts() == {}


def test_bundles_survive_their_table() -> None:
    from rised.records.schemas import from_table, to_table

    groups = [tagged("a", [1.0, 0.0], telling_states(2)), tagged("b", [1.0, 1.0], telling_states(2))]
    records: list[RubricBundle] = teacher(**TAGS).study(groups, Desk(), 0, 0)
    assert from_table(to_table(records, "rubric_bundles")) == records
