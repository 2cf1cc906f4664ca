"""Tags of validation rollouts: written with the step, of every rollout, and without any effect on the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage_commands import SingleSource

from rised.records.compaction import compact
from rised.records.digest import reproducible_digest
from rised.records.schemas import from_table
from rised.records.shards import RunReader
from rised.rubrics.judge_rules import RuleJudge
from rised.rubrics.vocabulary import load_vocabulary
from stages.setup import load_run, read_tasks
from stages.train import train

pytestmark = pytest.mark.usefixtures("at_the_root")


def test_every_validation_rollout_is_tagged_with_the_runs_judge_the_warm_starts_too(
    single_source: SingleSource,
) -> None:
    reader, judge = RunReader(single_source.run), RuleJudge(load_vocabulary())
    for step in reader.steps():
        rollouts = from_table(reader.scan("validation", steps=[step]))
        tags = from_table(reader.scan("validation_tags", steps=[step], judge=judge.judge_id))
        assert tags == judge.tag(rollouts)
        assert {t.rollout_id for t in tags} == {r.rollout_id for r in rollouts}
        counts = {row["name"]: row["value"] for row in reader.scan("metrics", steps=[step]).to_pylist()}
        assert counts["validation_tags/count"] == len(tags) and counts["validation_tags/errors"] == 0


def test_tags_of_validation_change_nothing_else_of_a_run(single_source: SingleSource, tmp_path: Path) -> None:
    config = load_run(single_source.config, "grpo_64", 0, ["validation.tags=false", "updates=1"])
    train(config, read_tasks(single_source.tasks), single_source.warm_start, tmp_path / "run")
    untagged, tagged = reproducible_digest(tmp_path / "run"), reproducible_digest(single_source.run)
    assert not RunReader(tmp_path / "run").shards("validation_tags")
    same = [path for path in untagged if path.startswith(("rollouts/", "tags/", "validation/", "selections/"))]
    assert len(same) == 5
    assert all(untagged[path] == tagged[path] for path in same)


def test_tags_of_validation_are_kept_by_compaction(single_source: SingleSource, tmp_path: Path) -> None:
    compact(single_source.run, tmp_path / "compacted")
    whole, compacted = RunReader(single_source.run), RunReader(tmp_path / "compacted")
    assert compacted.scan("validation_tags").equals(whole.scan("validation_tags"))
    assert whole.scan("validation_tags").num_rows > 0
