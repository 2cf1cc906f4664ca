"""The judge that needs no model: it asks the detectors of ``rised.rubrics.detectors``.

Detectors read a rollout's transcript and the environment's own log. A detector that fails is a tag error, never an
``absent``, and so is every tag of a rollout without a log; a detector that contradicts the vocabulary is a programming
error and stops the run.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import rised.rubrics.detectors as detectors_package
from rised.records.types import Rollout, Tag, TagState, TagStatus
from rised.rubrics.base import DETECTORS, Detector, Progress, RubricError, Verdict
from rised.rubrics.evidence import executed, unjudgeable
from rised.rubrics.judge_record import JudgeRecord
from rised.rubrics.vocabulary import Polarity, Vocabulary

_REASON_LENGTH = 300

DetectorTable = Mapping[str, Mapping[str, Detector]]
"""environment -> rubric id -> detector."""


def load_detectors() -> DetectorTable:
    """Import every detector module and return the filled registry."""
    for module in pkgutil.iter_modules(detectors_package.__path__):
        importlib.import_module(f"{detectors_package.__name__}.{module.name}")
    return DETECTORS


def detector_source_hash() -> str:
    """SHA-256 (hex) over the names and contents of the detectors' source files."""
    digest = hashlib.sha256()
    for folder in detectors_package.__path__:
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class RuleJudge:
    """Tags every rollout for every rubric of its environment that has a detector.

    ``judge_id`` changes with the detectors' source and with the vocabulary, so that tags of different rules never mix.
    """

    def __init__(self, vocabulary: Vocabulary, detectors: DetectorTable | None = None) -> None:
        """``detectors`` replaces the registered ones (tests). RubricError when one has no place in the vocabulary."""
        self.vocabulary = vocabulary
        table = load_detectors() if detectors is None else detectors
        _check_table(table, vocabulary)
        self._detectors: dict[str, list[tuple[str, Detector]]] = {
            environment: sorted(by_rubric.items(), key=lambda item: vocabulary.index(item[0]))
            for environment, by_rubric in table.items()
        }
        identity = hashlib.sha256(f"{detector_source_hash()}:{vocabulary.hash}".encode()).hexdigest()
        self.judge_id = f"rules-{identity[:12]}"
        self.record = JudgeRecord()

    def rubrics_of(self, environment: str) -> tuple[str, ...]:
        """The rubrics that this judge tags in an environment, in vocabulary order."""
        return tuple(rubric_id for rubric_id, _ in self._detectors.get(environment, ()))

    def tag(self, rollouts: Sequence[Rollout], progress: Progress | None = None) -> list[Tag]:
        """One tag per rollout and rubric with a detector, rollouts in input order, rubrics in vocabulary order."""
        tags: list[Tag] = []
        for done, rollout in enumerate(rollouts, 1):
            tags += self._tag_one(rollout)
            if progress is not None:
                progress(done, len(rollouts))
        return tags

    def _tag_one(self, rollout: Rollout) -> list[Tag]:
        detectors = self._detectors.get(rollout.environment)
        if not detectors:
            known = ", ".join(sorted(self._detectors)) or "none"
            raise RubricError(
                f"rollout {rollout.rollout_id!r}: no detectors for environment {rollout.environment!r} (there are some "
                f"for: {known}); add rised/rubrics/detectors/{rollout.environment}.py or configure another judge"
            )
        seen = executed(rollout)
        reason = _unjudgeable(seen)
        if reason:
            return [self._error(rollout, rubric_id, reason) for rubric_id, _ in detectors]
        return [self._apply(seen, rubric_id, detect) for rubric_id, detect in detectors]

    def _apply(self, rollout: Rollout, rubric_id: str, detect: Detector) -> Tag:
        try:
            verdict = detect(rollout)
        except Exception as error:  # any failure of a detector is a state of the tag, counted and shown
            return self._error(rollout, rubric_id, f"detector failed: {type(error).__name__}: {error}")
        self._check_verdict(rollout, rubric_id, verdict)
        return Tag(
            rollout_id=rollout.rollout_id,
            rubric_id=rubric_id,
            state=verdict.state,
            evidence_turn=verdict.evidence_turn,
            judge=self.judge_id,
            status=TagStatus.OK,
        )

    def _error(self, rollout: Rollout, rubric_id: str, reason: str) -> Tag:
        return Tag(
            rollout_id=rollout.rollout_id,
            rubric_id=rubric_id,
            state=None,
            evidence_turn=None,
            judge=self.judge_id,
            status=TagStatus.ERROR,
            reason=reason[:_REASON_LENGTH],
        )

    def _check_verdict(self, rollout: Rollout, rubric_id: str, verdict: Verdict) -> None:
        place = f"detector {rubric_id!r} of {rollout.environment!r} on rollout {rollout.rollout_id!r}"
        state, turn = verdict
        if state is TagState.DEMONSTRATES and self.vocabulary.polarity(rubric_id) is Polarity.NEGATIVE:
            raise RubricError(
                f"{place}: a negative rubric cannot be demonstrated; return VIOLATES when it is exhibited"
            )
        if state is TagState.ABSENT and turn is not None:
            raise RubricError(f"{place}: absent with evidence turn {turn}; absence has no evidence turn")
        if turn is not None and not 0 <= turn < len(rollout.turns):
            raise RubricError(f"{place}: evidence turn {turn} does not exist, the rollout has {len(rollout.turns)}")


def _unjudgeable(rollout: Rollout) -> str:
    """Why the rollout is no evidence of behaviour; "" when it is."""
    reason = unjudgeable(rollout)
    if reason:
        return reason
    without_log = [index for index, turn in enumerate(rollout.turns) if not turn.info]
    if without_log:
        return f"no environment log in turn {without_log[0]}: detectors cannot decide from the text alone"
    return ""


def _check_table(table: DetectorTable, vocabulary: Vocabulary) -> None:
    problems = []
    for environment, by_rubric in table.items():
        for rubric_id in by_rubric:
            if rubric_id not in vocabulary:
                problems.append(f"{environment}: detector for {rubric_id!r}, which is not in the vocabulary")
            elif not vocabulary.applies(rubric_id, environment):
                listed = ", ".join(vocabulary[rubric_id].environments)
                problems.append(f"{environment}: detector for {rubric_id!r}, which the vocabulary limits to {listed}")
    if problems:
        raise RubricError("detectors and vocabulary disagree:\n  " + "\n  ".join(problems))
