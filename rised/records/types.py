"""The nouns that stages hand to each other: rollouts, tags, selections, metrics.

Plain data, no behaviour beyond derived properties. How they become Parquet is in ``schemas``; who makes them
(episode loop, judges, selectors) lives above. Apart from this file nothing decides what a rollout is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class StopReason(StrEnum):
    """Why an episode ended. Every rollout has exactly one."""

    ENVIRONMENT_DONE = "environment_done"
    """The environment ended the episode itself: goal reached, item bought, answer given."""
    REPEATED_OUTPUT = "repeated_output"
    """The environment's own rule against loops ended it (AgentBench: three equal outputs in a row)."""
    INVALID_FORMAT = "invalid_format"
    """The reply could not be read as an action and the environment's protocol ends the episode then."""
    TURN_LIMIT = "turn_limit"
    """The configured number of turns was used up."""
    EPISODE_TOKEN_LIMIT = "episode_token_limit"
    """The next observation or reply would not fit in the episode's token budget."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment failed repeatedly; the rollout has no valid reward and is never scored."""
    PREFIX_VIOLATION = "prefix_violation"
    """A turn did not extend the tokens before it; the rollout has no valid reward."""


class TagState(StrEnum):
    """What a judge says of one rubric in one rollout."""

    DEMONSTRATES = "demonstrates"
    VIOLATES = "violates"
    ABSENT = "absent"


class TagStatus(StrEnum):
    """Whether the judge gave a readable verdict; everything but ``ok`` is an error and contributes no state."""

    OK = "ok"
    ERROR = "error"
    """A detector failed, or the rollout is no evidence of behaviour (nobody was asked)."""
    PARSE_ERROR = "parse_error"
    """A judge model replied, but not with one valid verdict on every rubric."""
    TIMEOUT = "timeout"
    """No reply within the deadline, at the last attempt."""
    SERVER_ERROR = "server_error"
    """The judge's server failed, refused the request or could not be reached, at the last attempt."""
    REFUSED = "refused"
    """The judge model declined."""
    FILTERED = "filtered"
    """A content filter held back the question or the reply."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation and the policy's reply to it.

    ``action_start``/``action_end`` is the half-open span of the reply's tokens in the rollout's ``token_ids``
    (the sampled end-of-turn token included). ``truncated``: the reply hit the limit of tokens per turn.
    ``info`` is the environment's log of this turn (JSON-serialisable), the ground truth that detectors read.
    """

    observation: str
    action_raw: str
    action_mapped: str
    action_valid: bool
    action_start: int
    action_end: int
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode as the policy lived it. Token ids are the sampled ones, never re-encoded text.

    Shapes: ``token_ids`` and ``policy_mask`` have length T; ``logprobs`` has one entry per True of ``policy_mask``
    (log-probability of the sampled token at the sampling temperature). ``final_observation`` is what the
    environment said after the last action. ``reward`` is None when ``reward_valid`` is False.
    """

    rollout_id: str
    run: str
    step: int
    weight_version: int
    split: str
    environment: str
    task_id: str
    group_id: str
    rollout_index: int
    seed: int
    system_prompt: str
    steering_rubrics: tuple[str, ...]
    steering_text: str
    steering_text_hash: str
    turns: tuple[Turn, ...]
    final_observation: str
    token_ids: tuple[int, ...]
    policy_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    reward: float | None
    reward_valid: bool
    success: bool | None
    stop_reason: StopReason

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation in chat form: system, then user/assistant in turn."""
        messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.observation})
            messages.append({"role": "assistant", "content": turn.action_raw})
        return messages


@dataclass(frozen=True, slots=True)
class Tag:
    """One judge's verdict on one rubric in one rollout. ``state`` is None exactly when ``status`` is not ok.

    ``cached``: no request was made for this rollout, the reply to an equal question being known.
    """

    rollout_id: str
    rubric_id: str
    state: TagState | None
    evidence_turn: int | None
    judge: str
    status: TagStatus
    reason: str = ""
    cached: bool = False


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """What a judge model was asked about one rollout and what it answered, as it came.

    ``reply`` is the last attempt's raw text ("" when nothing came), cut where it is very long; ``reason`` says why
    ``status`` is not ok. ``prompt_hash``: SHA-256 (hex) of the messages sent; ``shortened``: the transcript did not fit
    whole. Token counts are the server's, None where it gave none.
    """

    rollout_id: str
    judge: str
    status: TagStatus
    reason: str
    reply: str
    finish_reason: str
    prompt_hash: str
    shortened: bool
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Selection:
    """One candidate prompt group of a step and what the selector did with it. ``order`` is None if not selected."""

    step: int
    group_id: str
    environment: str
    selected: bool
    order: int | None
    similarity: float | None
    redundancy: float | None
    score: float | None


class BundleStatus(StrEnum):
    """Whether a rubric bundle was written and, where a verifier is asked, scored. All but ``ok`` are failures."""

    OK = "ok"
    NOT_ASKED = "not_asked"
    """The group was skipped before a bundle was written."""
    NO_CRITERIA = "no_criteria"
    """Nothing to write about: the rollouts differ in no rubric of the vocabulary."""
    TOO_LONG = "too_long"
    """The group's transcripts left no room for a reply."""
    CUT = "cut"
    """The writer's reply ran into its limit of tokens."""
    UNREADABLE = "unreadable"
    """The writer's reply is no bundle of the wanted form."""
    UNTAGGED = "untagged"
    """Fewer than half of the group's rollouts have readable tags to score them by."""
    VERIFIER_ERROR = "verifier_error"
    """No rollout of the group is evidence of behaviour."""
    VERIFIER_PARSE_ERROR = "verifier_parse_error"
    """The verifier replied, but not with one score in [0, 1] for each pair."""
    VERIFIER_TIMEOUT = "verifier_timeout"
    VERIFIER_SERVER_ERROR = "verifier_server_error"
    VERIFIER_REFUSED = "verifier_refused"
    VERIFIER_FILTERED = "verifier_filtered"


class CreditState(StrEnum):
    """What became of a group's token credit. Everything but ``given`` leaves its tokens the group's advantage."""

    GIVEN = "given"
    BELOW_TWO_REWARDS = "below_two_rewards"
    """Fewer than two valid rewards: no correlation exists."""
    CONSTANT_REWARDS = "constant_rewards"
    """All valid rewards are equal: the correlation is undefined."""
    CONSTANT_SATISFACTION = "constant_satisfaction"
    """Every bundle is satisfied equally by all rollouts: the correlation is undefined."""
    NO_BUNDLE = "no_bundle"
    """No bundle was written."""
    NOT_VERIFIED = "not_verified"
    """Bundles were written, but none was scored."""


@dataclass(frozen=True, slots=True)
class RubricBundle:
    """One candidate bundle of criteria that was written for a prompt group, and what the verifier made of it.

    Every group that was studied has at least one. ``rubric_ids`` name the vocabulary's rubrics where the criteria are
    such, else they are "". ``scores``: one row per rollout of ``rollout_ids``, one score in [0, 1] per criterion; an
    empty row without a score, no rows without a verifier. ``satisfaction``: each rollout's mean score. ``alignment``:
    Spearman's correlation of satisfaction and training reward, None where undefined. ``group_state`` is that of the
    group and equal on all its bundles; at most one of them is ``chosen``.
    """

    step: int
    group_id: str
    environment: str
    index: int
    writer: str
    verifier: str
    status: BundleStatus
    reason: str
    criteria: tuple[str, ...]
    rubric_ids: tuple[str, ...]
    rollout_ids: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]
    satisfaction: tuple[float | None, ...]
    alignment: float | None
    chosen: bool
    group_state: CreditState
    reply: str = ""
    verifier_reply: str = ""


@dataclass(frozen=True, slots=True)
class Reselection:
    """What another selector would have done with one candidate group of a step, from stored rollouts alone.

    ``selector``: its name (``configs/selectors.yaml``). ``tags``: whose tags it read, ``own`` for the run's, else the
    judge's name, with that judge's id; both "" for a selector that reads none. The rest is as in :class:`Selection`.
    """

    step: int
    selector: str
    tags: str
    judge: str
    group_id: str
    environment: str
    selected: bool
    order: int | None
    similarity: float | None
    redundancy: float | None
    score: float | None


@dataclass(frozen=True, slots=True)
class Gradient:
    """The mean policy gradient of some tasks of one environment at one checkpoint (``step``), seen through one signal.

    ``signal``: ``layer`` (all weights of one transformer layer) or ``projection`` (all layers, projected at random).
    ``layers``: their indices, "2" or "0-3". ``dimension``: of the gradient that is compared. ``signal_group_count`` of
    ``group_count`` groups have rewards that differ; the others bring no gradient. ``norm``: Euclidean, of the gradient
    or its projection. ``cosine``: with the gradient of the ``train`` tasks at the same step and signal; None on the
    ``train`` row itself, and where one of the two is zero. ``vector``: the projection; empty for a layer.
    """

    step: int
    environment: str
    split: str
    signal: str
    layers: str
    dimension: int
    group_count: int
    signal_group_count: int
    rollout_count: int
    norm: float
    cosine: float | None
    vector: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeAudit:
    """How one judge's tags agree with the detectors' on one rubric of one environment, over the rollouts of some steps.

    ``state``: the one that is counted as shown; ``violates`` of a positive rubric is a row of its own.
    ``rubric_id`` "" is all rubrics of the environment together. ``errors`` of ``rollouts`` have no valid tag of the
    judge and enter nothing else; of the others, the four counts compare judge (positive) and detector (true).
    Precision and recall are undefined (None) over nothing, with Wilson's intervals; ``kappa`` is Cohen's over all
    states, its interval from resampled groups, and equal on the rows of one rubric.
    """

    environment: str
    rubric_id: str
    state: str
    judge: str
    model: str
    detectors: str
    rollouts: int
    errors: int
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int
    precision: float | None
    precision_low: float | None
    precision_high: float | None
    recall: float | None
    recall_low: float | None
    recall_high: float | None
    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None


@dataclass(frozen=True, slots=True)
class SelectionAudit:
    """What a judge's errors do to one step's profiles and selection.

    ``rubrics``: ``covered`` takes from the judge only the rubrics that detectors decide, so that nothing but its errors
    differs; ``all`` takes everything that it tags. ``overlap``: share of the ``selected`` of ``groups`` that both
    select; ``chance_overlap``: the share that two random selections of that size share on average, environments
    aside. ``profile_cosine``: mean over the groups that both have a profile of, None without one or for ``all``;
    ``untagged``: groups without a profile by the judge.
    """

    step: int
    judge: str
    model: str
    rubrics: str
    groups: int
    selected: int
    overlap: float
    chance_overlap: float
    profile_cosine: float | None
    untagged: int


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of one step. ``value`` is None when undefined (never NaN). ``unit``: tokens, count, fraction, nats…"""

    step: int
    name: str
    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Timing:
    """One wall-clock measurement of one step (seconds, tokens/s, peak memory): never equal between two runs.

    Kept apart from :class:`Metric`, so that every other shard is byte-reproducible. ``subject`` is the rollout,
    judge or worker that was measured, empty for the step as a whole.
    """

    step: int
    name: str
    value: float
    unit: str
    subject: str = ""
