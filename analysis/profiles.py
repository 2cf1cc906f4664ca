"""Behaviour profiles of environments from stored tags: of the latest training rollouts, and of one validation.

What a profile is stands in ``rised.rubrics.profiles``, the one definition that selection and analysis share. Here tags
are read, brought to their groups, and averaged over an environment's groups. Shapes: K rubrics, S skills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis import AnalysisError
from analysis.frames import judges
from analysis.runs import Run
from rised.records.schemas import from_table
from rised.records.types import Tag
from rised.rubrics.base import RubricError
from rised.rubrics.profiles import group_shares, skill_membership
from rised.rubrics.vocabulary import Vocabulary

EPISODES = {"tags": "rollouts", "validation_tags": "validation"}
"""Kind of tags -> kind of the rollouts that they belong to."""
PROFILES = ("rubric_pos", "rubric_neg", "rubric_all", "skill_pos", "skill_neg", "skill_all")


@dataclass(frozen=True, slots=True)
class Profile:
    """Means over the tagged groups of one environment of the shares that demonstrate and that violate each rubric."""

    demonstrates_K: np.ndarray
    violates_K: np.ndarray
    group_count: int

    def vectors(self, vocabulary: Vocabulary) -> dict[str, np.ndarray]:
        """The profile in each of the forms ``PROFILES``: rubrics or skills, one half or both."""
        membership_SK = skill_membership(vocabulary)
        found: dict[str, np.ndarray] = {}
        for level, matrix in (("rubric", None), ("skill", membership_SK)):
            halves = [half if matrix is None else matrix @ half for half in (self.demonstrates_K, self.violates_K)]
            found |= {f"{level}_pos": halves[0], f"{level}_neg": halves[1], f"{level}_all": np.concatenate(halves)}
        return found


def run_judge(run: Run) -> str | None:
    """The judge of the run's training and validation tags; None if either is missing; AnalysisError if they differ."""
    found = {kind: judges(run, kind) for kind in EPISODES}
    if not all(found.values()):
        return None
    if found["tags"] != found["validation_tags"] or len(found["tags"]) != 1:
        names = ", ".join(sorted({judge for kind in found.values() for judge in kind}))
        raise AnalysisError(f"{run.path}: training and validation must be tagged by one judge; there are {names}")
    return found["tags"][0]


def refuse_other_vocabulary(run: Run, vocabulary: Vocabulary) -> None:
    """AnalysisError if the run was tagged against another vocabulary: its components would be other rubrics."""
    recorded = run.header.get("vocabulary_hash")
    if recorded != vocabulary.hash:
        raise AnalysisError(
            f"{run.path} was tagged against vocabulary {str(recorded)[:12]}, this is {vocabulary.hash[:12]}: "
            "analyse it with the version that made it"
        )


def environment_profiles(
    run: Run, kind: str, steps: Sequence[int], judge: str, vocabulary: Vocabulary, tagged: Run | None = None
) -> dict[str, Profile]:
    """environment -> profile over all its groups of ``steps``; an environment without a tagged group is absent.

    ``kind``: ``tags`` or ``validation_tags``. A group is one task in one step. ``tagged``: where the tags are read, if
    not in the run itself.
    """
    columns = ["step", "environment", "task_id", "rollout_id"]
    episodes = run.reader.scan(EPISODES[kind], columns, steps=steps)
    tags_of = _tags_by_rollout(tagged or run, kind, steps, judge, episodes["rollout_id"])
    groups: dict[tuple[str, int, str], list[str]] = {}
    for row in episodes.to_pylist():
        groups.setdefault((row["environment"], row["step"], row["task_id"]), []).append(row["rollout_id"])
    shares: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for (environment, _, _), rollout_ids in groups.items():
        tags = [tag for rollout_id in rollout_ids for tag in tags_of.get(rollout_id, ())]
        try:
            found = group_shares(tags, rollout_ids, vocabulary)
        except RubricError as error:
            raise AnalysisError(f"{run.path}: {kind} of {environment}: {error}") from error
        if found.tagged:
            shares.setdefault(environment, []).append((found.demonstrates_K, found.violates_K))
    return {
        environment: Profile(
            np.mean([d_K for d_K, _ in found], axis=0), np.mean([v_K for _, v_K in found], axis=0), len(found)
        )
        for environment, found in shares.items()
    }


def _tags_by_rollout(
    run: Run, kind: str, steps: Sequence[int], judge: str, rollout_ids: pa.ChunkedArray
) -> dict[str, list[Tag]]:
    """The tags of some rollouts."""
    mine = pc.field("rollout_id").isin(rollout_ids.combine_chunks())
    without_index = run.reader.compacted and kind not in run.reader.step_rows
    table = run.reader.scan(kind, filter=mine, steps=None if without_index else steps, judge=judge)
    found: dict[str, list[Tag]] = {}
    for tag in from_table(table, str(run.path)):
        found.setdefault(tag.rollout_id, []).append(tag)
    return found
