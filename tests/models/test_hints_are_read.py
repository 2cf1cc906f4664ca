"""The shipped nano policy reads hint blocks: a true hint makes what it names likelier, a false one does not.

Without that a teacher's signal would be noise. Measured on held-out tasks that the warm start never saw: an expert with
wasteful steps plays them, the rule-based judge says which positive rubrics each transcript demonstrates and in which
turn, and the policy scores that turn's reply without a hint, under the rubric that it demonstrates (true) and under
one that applies to the environment and that the transcript does not demonstrate (false).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest
import torch

from rised.config.loader import load
from rised.environments.discovery import get
from rised.learner.demonstration_batches import render_demonstration, true_hints
from rised.models.loading import load_policy
from rised.models.rendering import ChatRendering
from rised.models.scoring import sequence_logprobs
from rised.models.settings import ModelSettings
from rised.nano_policy import NanoPolicyConfig
from rised.records.types import Rollout, Tag, TagState
from rised.rollouts.demonstrations import play_expert
from rised.rubrics.blocks import hint_block
from rised.rubrics.judge_rules import RuleJudge
from rised.rubrics.vocabulary import Polarity, Vocabulary, load_vocabulary

POLICY = Path("data/nano_policy")
TRANSCRIPTS = 24
PAIRS = 3
"""Demonstrated rubrics that are scored in each transcript."""
NOISE = 0.2
SEED = 20
"""Of the panels: another than any configuration uses."""


class Score(NamedTuple):
    """Mean log-probability of the tokens of one turn, in nats per token, without a hint and under each."""

    environment: str
    rubric: str
    without: float
    true: float
    false: float


class Case(NamedTuple):
    """One turn of one transcript, the rubric that it demonstrates and one that the transcript does not."""

    rollout: Rollout
    turn: int
    true: str
    false: str


@pytest.fixture(scope="module")
def policy(repository: Path) -> tuple[torch.nn.Module, ChatRendering]:
    if not (repository / POLICY / "model.safetensors").is_file():
        pytest.skip(f"{POLICY} is not built: make nano_policy builds it")
    torch.set_num_threads(1)
    model, tokenizer = load_policy(ModelSettings(path=str(POLICY)), repository)
    return model, ChatRendering(tokenizer)


def transcripts(config: NanoPolicyConfig, name: str) -> list[Rollout]:
    """Transcripts of solved held-out tasks, whose behaviours differ."""
    spec = get(name)
    settings = config.environments[name].settings
    tasks = spec.prepare(settings, "validation", TRANSCRIPTS, SEED)
    environment = spec.make(settings)
    played = [play_expert(environment, task, SEED + index, NOISE, spec.max_turns) for index, task in enumerate(tasks)]
    environment.close()
    return [rollout for rollout in played if rollout.success]


def cases(rollouts: Sequence[Rollout], judge: RuleJudge, vocabulary: Vocabulary) -> list[Case]:
    """Up to ``PAIRS`` demonstrated rubrics of each transcript, each beside one that it does not demonstrate."""
    found = []
    for rollout in rollouts:
        rng = random.Random(rollout.rollout_id)
        tags = judge.tag([rollout])
        turns = {tag.rubric_id: tag.evidence_turn for tag in tags}
        true = [rubric for rubric in true_hints(tags, vocabulary) if turns[rubric] is not None]
        false = [tag.rubric_id for tag in tags if _positive(tag, vocabulary) and tag.state is TagState.ABSENT]
        for rubric in rng.sample(true, min(PAIRS, len(true))) if false else []:
            turn = turns[rubric]
            assert turn is not None
            found.append(Case(rollout, turn, rubric, rng.choice(false)))
    return found


def _positive(tag: Tag, vocabulary: Vocabulary) -> bool:
    return vocabulary.polarity(tag.rubric_id) is Polarity.POSITIVE


@pytest.fixture(scope="module")
def scores(policy: tuple[torch.nn.Module, ChatRendering], repository: Path) -> list[Score]:
    """Every case of every environment, scored."""
    model, rendering = policy
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        config = load(NanoPolicyConfig, [Path("configs/nano_policy.yaml")])
        vocabulary = load_vocabulary(Path(config.rubrics.vocabulary))
        judge = RuleJudge(vocabulary)
        found = [case for name in config.environments for case in cases(transcripts(config, name), judge, vocabulary)]
    ids, masks, prefixes = [], [], []
    for case in found:
        tokens, mask = turn_tokens(case.rollout, case.turn, rendering)
        for hint in ("", case.true, case.false):
            ids.append(tokens)
            masks.append(mask)
            block = hint_block([hint], vocabulary, config.block_style) if hint else ""
            prefixes.append(rendering.hint_prefix(block) if block else [])
    with torch.no_grad():
        values = [float(v.mean()) for v in sequence_logprobs(model, ids, masks, prefix_ids=prefixes)]
    triples = zip(values[::3], values[1::3], values[2::3], strict=True)
    return [Score(c.rollout.environment, c.true, *triple) for c, triple in zip(found, triples, strict=True)]


def turn_tokens(rollout: Rollout, turn: int, rendering: ChatRendering) -> tuple[list[int], list[bool]]:
    """The transcript up to the end of ``turn`` as the warm start renders it, and a mask of that turn's reply."""
    example, before = (
        render_demonstration(replace(rollout, turns=rollout.turns[:count]), rendering, observation_weight=0.0)
        for count in (turn + 1, turn)
    )
    start = len(before.token_ids)
    mask = [weight > 0 and place >= start for place, weight in enumerate(example.weights)]
    return list(example.token_ids), mask


def per_rubric(scores: Sequence[Score], hint: str) -> dict[tuple[str, str], float]:
    """(environment, rubric) -> mean change of the log-probability under ``true`` or ``false`` hints."""
    changes: dict[tuple[str, str], list[float]] = defaultdict(list)
    for score in scores:
        changes[score.environment, score.rubric].append(getattr(score, hint) - score.without)
    return {key: mean(values) for key, values in changes.items()}


def gains(scores: Sequence[Score]) -> tuple[float, float]:
    """Change under true and under false hints, every rubric counting once, in nats per token."""
    return mean(per_rubric(scores, "true").values()), mean(per_rubric(scores, "false").values())


def test_there_is_enough_to_measure(scores: list[Score]) -> None:
    for name in ("alfworld", "webshop", "dbbench"):
        mine = [score for score in scores if score.environment == name]
        assert len(mine) >= TRANSCRIPTS
        assert len({score.rubric for score in mine}) >= 3


def test_a_true_hint_raises_the_likelihood_of_what_demonstrates_it(scores: list[Score]) -> None:
    true, _ = gains(scores)
    assert true > 0.01, f"true hints change the log-probability by {true:+.4f} nats per token"


def test_a_false_hint_does_not(scores: list[Score]) -> None:
    true, false = gains(scores)
    assert false <= 0.0, f"false hints change the log-probability by {false:+.4f} nats per token"
    assert true - false > 0.03


def test_it_holds_in_every_environment(scores: list[Score]) -> None:
    for name in ("alfworld", "webshop", "dbbench"):
        true, false = gains([score for score in scores if score.environment == name])
        assert true > false, f"{name}: true {true:+.4f}, false {false:+.4f}"
