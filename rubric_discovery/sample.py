"""Step 1, sample: rollouts stratified by environment, outcome and checkpoint, and pairs of one task.

Reads runs (with their texts) or a shard of rollouts; writes ``sampled.parquet`` (rollouts) and ``pairs.parquet``. Left
out are rollouts that are no evidence of behaviour, those without a valid reward, and steered ones, whose prompt holds
the rubrics of another vocabulary [ours]. The choice follows from seed and rollout ids alone.

    python -m rubric_discovery.sample --config configs/discovery/quickstart.yaml --out build/discovery \\
        --runs results/quickstart/rised/seed-0
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rised.config.paths import shipped
from rised.records.files import sha256_of
from rised.records.schemas import from_table, to_table
from rised.records.shards import RunReader, read_shard, write_shard
from rised.records.types import Rollout
from rised.rubrics.evidence import executed, unjudgeable
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.records import Pair, write_rows
from rubric_discovery.settings import DiscoverySettings
from rubric_discovery.work import Step, Work, main_of

Stratum = tuple[str, bool, int]
"""Environment, success, part of the run."""


def load_rollouts(work: Work) -> list[Rollout]:
    """All training rollouts of the runs, or those of the shard; DiscoveryError if there is no source.

    Runs of one experiment share rollout ids, so that the run's name goes before them.
    """
    settings = work.settings
    runs = [*map(Path, settings.runs), *work.runs]
    if settings.rollouts is not None and not runs:
        return list(from_table(read_shard(shipped(settings.rollouts), "rollouts"), settings.rollouts))
    if not runs:
        raise DiscoveryError("no rollouts: name run directories with --runs, or `runs` or `rollouts` in the file")
    places = [run.resolve() for run in runs]
    for place, run in enumerate(runs):
        if places[place] in places[:place]:
            raise DiscoveryError(f"{run} is named twice (`runs` of the file and --runs): name each run once")
    found: list[Rollout] = []
    for run in runs:
        reader = RunReader(run)
        if (run / "compacted.json").exists():
            raise DiscoveryError(f"{run} is compacted: behaviours are found in texts, which only the full run has")
        found += [
            replace(rollout, rollout_id=f"{rollout.run}/{rollout.rollout_id}")
            for rollout in from_table(reader.scan("rollouts"), str(run))
        ]
    return found


def usable(rollouts: Sequence[Rollout], settings: DiscoverySettings) -> list[Rollout]:
    """Those that behaviours may be read from."""
    wanted = settings.environments
    return [
        rollout
        for rollout in rollouts
        if rollout.reward_valid
        and rollout.success is not None
        and not rollout.steering_text
        and (wanted is None or rollout.environment in wanted)
        and not unjudgeable(executed(rollout))
    ]


def strata(rollouts: Sequence[Rollout], checkpoints: int) -> dict[Stratum, list[Rollout]]:
    """Rollouts by environment, outcome and the part of their run, of equal numbers of updates."""
    last: dict[str, int] = {}
    for rollout in rollouts:
        last[rollout.run] = max(last.get(rollout.run, 0), rollout.step)
    found: dict[Stratum, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        part = min(checkpoints - 1, checkpoints * rollout.step // (last[rollout.run] + 1))
        found[rollout.environment, bool(rollout.success), part].append(rollout)
    return dict(sorted(found.items()))


def shuffled(rollouts: Sequence[Rollout], seed: int) -> list[Rollout]:
    """A permutation that follows from seed and ids."""
    return sorted(rollouts, key=lambda r: hashlib.sha256(f"{seed}:{r.run}:{r.rollout_id}".encode()).digest())


def make_pairs(rollouts: Sequence[Rollout], per_environment: int, seed: int) -> list[tuple[Rollout, Rollout]]:
    """Success and failure of one task, one pair a task before any task has two; the nearest checkpoints first."""
    by_task: dict[tuple[str, str], tuple[list[Rollout], list[Rollout]]] = defaultdict(lambda: ([], []))
    for rollout in shuffled(rollouts, seed):
        by_task[rollout.environment, rollout.task_id][0 if rollout.success else 1].append(rollout)
    pairs: list[tuple[Rollout, Rollout]] = []
    for environment in sorted({name for name, _ in by_task}):
        tasks = [both for (name, _), both in by_task.items() if name == environment and both[0] and both[1]]
        rounds = []
        for successes, failures in tasks:
            near = sorted(
                ((s, f) for s in successes for f in failures), key=lambda p: (p[0].run != p[1].run, _apart(*p))
            )
            taken: set[str] = set()
            own = []
            for s, f in near:
                if not taken & {s.rollout_id, f.rollout_id}:
                    taken |= {s.rollout_id, f.rollout_id}
                    own.append((s, f))
            rounds.append(own)
        turns = max(map(len, rounds), default=0)
        pairs += [own[turn] for turn in range(turns) for own in rounds if turn < len(own)][:per_environment]
    return pairs


def _apart(success: Rollout, failure: Rollout) -> int:
    return abs(success.step - failure.step)


def run(work: Work) -> Mapping[str, Any]:
    settings = work.settings
    loaded = load_rollouts(work)
    rollouts = usable(loaded, settings)
    ids = Counter(rollout.rollout_id for rollout in rollouts)
    twice = [name for name, count in ids.items() if count > 1]
    if twice:
        raise DiscoveryError(f"rollout {twice[0]!r} stands twice: is one run named twice?")
    found = strata(rollouts, settings.sample.checkpoints)
    chosen = {
        rollout.rollout_id: rollout
        for members in found.values()
        for rollout in shuffled(members, settings.seed)[: settings.sample.rollouts_per_stratum]
    }
    pairs = make_pairs(rollouts, settings.sample.pairs_per_environment, settings.seed)
    if not pairs:
        raise DiscoveryError(
            f"no task has both a success and a failure among {len(rollouts)} usable of {len(loaded)} rollouts: "
            "sample more runs, or earlier and later ones"
        )
    for both in pairs:
        chosen |= {rollout.rollout_id: rollout for rollout in both}
    sampled = sorted(chosen.values(), key=lambda r: (r.environment, r.run, r.step, r.group_id, r.rollout_index))
    rows = [
        Pair(f"{s.environment}:{number:03d}", s.environment, s.task_id, s.rollout_id, f.rollout_id)
        for number, (s, f) in enumerate(pairs)
    ]
    write_shard(work.path("sampled.parquet"), to_table(sampled, "rollouts"))
    write_rows(work.path("pairs.parquet"), Pair, rows)
    return {
        "counts": {"rollouts": len(sampled), "of": len(loaded), "usable": len(rollouts), "pairs": len(rows)},
        "strata": [
            {"environment": e, "success": s, "part": p, "rollouts": len(members)}
            for (e, s, p), members in found.items()
        ],
        "pairs": dict(Counter(row.environment for row in rows)),
    }


def sources(work: Work) -> dict[str, str]:
    """Where the rollouts come from: a shard by its hash, runs by their headers and last steps."""
    settings = work.settings
    if settings.rollouts is not None and shipped(settings.rollouts).is_file():
        return {settings.rollouts: sha256_of(shipped(settings.rollouts))}
    found = {}
    for run_path in [*map(Path, settings.runs), *work.runs]:
        reader = RunReader(run_path)
        header = sha256_of(run_path / "manifest.json") if (run_path / "manifest.json").is_file() else ""
        found[str(run_path)] = f"{header}@{max(reader.steps(), default=0)}"
    return found


STEP = Step("sample", (), ("sampled.parquet", "pairs.parquet"), run, sources)

if __name__ == "__main__":
    raise SystemExit(main_of(STEP, __doc__))
