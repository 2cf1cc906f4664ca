"""Names inside a run directory: which folder holds which kind of record, and how steps and judges are spelled.

``step-000012``, not ``step=000012``: a hive key beside a column of the same name makes the usual readers fail.
Nothing here touches the disk.
"""

from __future__ import annotations

import hashlib
import re

from rised.records.errors import RecordError

KIND_SCHEMAS = {
    "rollouts": "rollouts",
    "tags": "tags",
    "judge_replies": "judge_replies",
    "selections": "selections",
    "rubric_bundles": "rubric_bundles",
    "metrics": "metrics",
    "timings": "timings",
    "validation": "rollouts",
    "validation_tags": "tags",
    "gradients": "gradients",
    "judge_audits": "judge_audits",
    "selection_audits": "selection_audits",
    "reselections": "reselections",
    "tag_counts": "tag_counts",
    "rollout_texts": "rollouts",
}
"""Kind of shard (and its folder in a run) -> name of its schema."""

DERIVED_KINDS = frozenset({"tag_counts", "rollout_texts"})
"""Kinds that only compaction makes, from others."""

JUDGED_KINDS = frozenset({"tags", "judge_replies", "validation_tags", "judge_audits", "selection_audits"})
"""Kinds with one folder per judge."""

COUNTED_KINDS = frozenset({"rollouts", "validation"})
"""Kinds whose number of rows the step's plan must state before a commit."""

TIMINGS = "timings"
"""The one kind that holds wall-clock measurements; all others are byte-reproducible, as far as the judge is."""

GRADIENT_SIGNAL = "gradient_signal"
"""Folder in a finished run with a run directory of its own: the gradients measured at its checkpoints."""

SECOND_TAGS = "second_tags"
"""Likewise: the tags of a second pass of the judge over the run's rollouts."""

AUDIT = "audit"
"""Likewise, one run directory for each judge in it: its tags beside the detectors', and how they agree."""

RETAGS = "retags"
"""Likewise, one run directory for each judge in it: its tags of the run's rollouts."""

RESELECTED = "reselected"
"""Likewise: what other selectors choose of the run's candidates."""

IN_A_RUN = frozenset({GRADIENT_SIGNAL, SECOND_TAGS, AUDIT, RETAGS, RESELECTED})
"""Folders in a run that are, or hold, run directories of their own."""

STATE = "state"
"""Folder of what a resumed run needs (optimiser, random streams, cursors); old steps are removed."""
CHECKPOINTS = "checkpoints"
"""Folder of weights that stay."""
MANIFESTS = "manifests"
HEADER = "manifest.json"
CONFIG = "config.yaml"
DONE = "DONE"
LOCK = ".lock"
COMPACTED = "compacted.json"

STEP_FOLDERS = (*KIND_SCHEMAS, STATE, CHECKPOINTS)
"""Folders of a run that hold step folders: the only places where leftovers are looked for."""

_STEP = re.compile(r"step-(\d{6,})(\.json)?")


def step_name(step: int) -> str:
    """``step-000012`` for step 12."""
    if step < 0:
        raise RecordError(f"step {step} is negative: steps count from 0")
    return f"step-{step:06d}"


def parse_step(name: str) -> int | None:
    """The step in ``step-000012`` or ``step-000012.json``; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def judge_folder(judge: str) -> str:
    """Folder name of a judge: its id, or a readable form of it plus a digest if the id has unusual characters."""
    if not judge:
        raise RecordError("a judge needs an id: tags are stored under it")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", judge)[:80]
    if plain == judge:
        return f"judge-{judge}"
    return f"judge-{plain}-{hashlib.sha256(judge.encode()).hexdigest()[:8]}"


def shard_path(kind: str, step: int, judge: str | None = None, part: int = 0) -> str:
    """Path of a shard relative to the run directory, with forward slashes."""
    if kind not in KIND_SCHEMAS:
        raise RecordError(f"unknown kind of record {kind!r}: one of {', '.join(KIND_SCHEMAS)}")
    if (kind in JUDGED_KINDS) != (judge is not None):
        need = "needs" if kind in JUDGED_KINDS else "takes no"
        raise RecordError(f"kind {kind!r} {need} judge id")
    folder = f"{kind}/{judge_folder(judge)}" if judge is not None else kind
    return f"{folder}/{step_name(step)}/part-{part}.parquet"
