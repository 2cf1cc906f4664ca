"""Step 4, merge: candidates that say the same become one, also across environments.

Reads ``candidates.parquet``; writes ``merged.parquet`` and, for each candidate, where it went (``members.parquet``).
Two candidates are never merged against their polarity. Complete linkage on cosine distances [ours]: in a cluster every
pair is at least as similar as the setting says. Candidates of one id and polarity are one whatever they say. The
candidate with the most observations gives its words; ids that are left over and clash across polarities are refused.

    python -m rubric_discovery.merge --config configs/discovery/quickstart.yaml --out build/discovery
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rubric_discovery.embedding import EMBEDDINGS, chosen
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.records import Candidate, Member, read_rows, write_rows
from rubric_discovery.work import Step, Work, main_of


def text_of(candidate: Candidate) -> str:
    """What is embedded: name and definition, not the examples, whose objects are the environment's."""
    return f"{candidate.rubric_id.replace('_', ' ')}: {candidate.definition}"


def clusters(candidates: Sequence[Candidate], cosine_NN: np.ndarray, similarity: float) -> list[list[int]]:
    """Indices of the candidates that are one, in order of their first member."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    count = len(candidates)
    if count < 2:
        return [list(range(count))] if count else []
    distance_NN = np.clip(1.0 - cosine_NN, 0.0, 2.0)
    for i in range(count):
        for j in range(count):
            if candidates[i].polarity != candidates[j].polarity:
                distance_NN[i, j] = 3.0
            elif candidates[i].rubric_id == candidates[j].rubric_id:
                distance_NN[i, j] = 0.0
    np.fill_diagonal(distance_NN, 0.0)
    tree = linkage(squareform((distance_NN + distance_NN.T) / 2, checks=False), method="complete")
    labels = fcluster(tree, t=1.0 - similarity + 1e-12, criterion="distance")
    found: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        found.setdefault(int(label), []).append(index)
    return _joined_by_id(candidates, sorted(found.values()))


def _joined_by_id(candidates: Sequence[Candidate], found: list[list[int]]) -> list[list[int]]:
    """Complete linkage may part two candidates of one id: their clusters are joined."""
    joined: dict[tuple[str, str], list[int]] = {}
    result: list[list[int]] = []
    for members in found:
        keys = {(candidates[i].rubric_id, candidates[i].polarity) for i in members}
        known = next((joined[key] for key in sorted(keys) if key in joined), None)
        if known is None:
            known = []
            result.append(known)
        known.extend(members)
        joined |= dict.fromkeys(keys, known)
    return [sorted(members) for members in result]


def representative(candidates: Sequence[Candidate], members: Sequence[int]) -> int:
    """The member with the most observations, then the first id."""
    return min(members, key=lambda i: (-len(candidates[i].observation_ids), candidates[i].rubric_id, i))


def merged(candidates: Sequence[Candidate], members: Sequence[int]) -> Candidate:
    """One candidate of several: words of the representative, environments and observations of all."""
    best = candidates[representative(candidates, members)]
    environments = {name for i in members for name in candidates[i].environments}
    observations = [name for i in members for name in candidates[i].observation_ids]
    return replace(best, environments=tuple(sorted(environments)), observation_ids=tuple(sorted(observations)))


def run(work: Work) -> Mapping[str, Any]:
    settings = work.settings.merge
    candidates = read_rows(work.path("candidates.parquet"), Candidate)
    if not candidates:
        raise DiscoveryError("there is no candidate to merge: run propose and normalise on more rollouts")
    name = chosen(settings.embedding)
    vectors_ND = EMBEDDINGS[name]([text_of(candidate) for candidate in candidates])
    cosine_NN = vectors_ND @ vectors_ND.T
    similarity = getattr(settings, f"{name}_similarity")
    found = clusters(candidates, cosine_NN, similarity)
    rows = sorted((merged(candidates, members) for members in found), key=lambda row: (row.rubric_id, row.polarity))
    ids = [row.rubric_id for row in rows]
    clash = sorted({name for name in ids if ids.count(name) > 1})
    if clash:
        raise DiscoveryError(f"candidate {clash[0]!r} is both positive and negative: its replies contradict each other")
    where = []
    for members in found:
        head = representative(candidates, members)
        for i in members:
            own = candidates[i]
            similarity_i = float(np.clip(cosine_NN[i, head], -1, 1))
            where.append(
                Member(own.candidate_id, own.rubric_id, candidates[head].rubric_id, round(similarity_i, 6), name)
            )
    write_rows(work.path("merged.parquet"), Candidate, rows)
    write_rows(work.path("members.parquet"), Member, sorted(where, key=lambda row: row.candidate_id))
    return {
        "embedding": name,
        "similarity": similarity,
        "counts": {"candidates": len(candidates), "merged": len(rows)},
    }


STEP = Step("merge", ("candidates.parquet",), ("merged.parquet", "members.parquet"), run)

if __name__ == "__main__":
    raise SystemExit(main_of(STEP, __doc__))
