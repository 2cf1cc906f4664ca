"""What an environment measures beside success reaches the metrics of training and of validation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rised.environments.discovery import get
from rised.environments.mapf_frozenlake.settings import MapfFrozenLakeSettings, MapKnobs
from rised.records.types import Rollout, StopReason
from rised.rollouts.demonstrations import play_expert
from stages.loop import rollout_metrics, validation_metrics


@pytest.fixture(scope="module")
def rollouts() -> list[Rollout]:
    """Two solved episodes, the first one of them failed in a hole, and one that the environment lost."""
    spec = get("mapf_frozenlake")
    settings = MapfFrozenLakeSettings(train_maps={"4": MapKnobs(wait=0.0)})
    environment = spec.make(settings)
    solved = [play_expert(environment, task, 0, 0.0, spec.max_turns) for task in spec.prepare(settings, "train", 2, 0)]
    last = solved[0].turns[-1]
    fallen = replace(last, info={**last.info, "failure": "hole", "cost": None})
    failed = replace(solved[0], turns=(*solved[0].turns[:-1], fallen), reward=0.0, success=False)
    lost = replace(failed, reward=None, reward_valid=False, success=None, stop_reason=StopReason.ENVIRONMENT_ERROR)
    return [failed, solved[1], lost]


def test_each_measure_is_a_mean_over_the_episodes_that_have_it_and_were_not_lost(rollouts: list[Rollout]) -> None:
    for prefix, metrics in (
        ("rollout", rollout_metrics(rollouts, [], 1)),
        ("validation", validation_metrics(rollouts, 1)),
    ):
        found = {metric.name: metric.value for metric in metrics}
        mine = f"{prefix}/measures/mapf_frozenlake"
        assert found[f"{mine}/valid"] == found[f"{prefix}/success/mapf_frozenlake"] == 0.5
        assert (found[f"{mine}/optimal/size_4"], found[f"{mine}/failure_hole/size_4"]) == (0.5, 0.5)
        assert (found[f"{mine}/failure_conflict"], found[f"{mine}/cost_ratio"]) == (0.0, 1.0)
        assert not any(name.startswith(f"{mine}/valid/wait") for name in found)
        assert len(found) == len(metrics)


def test_an_environment_that_measures_nothing_else_has_no_such_metrics(rollouts: list[Rollout]) -> None:
    others = [replace(rollout, environment="dbbench") for rollout in rollouts]
    assert not any("measures" in metric.name for metric in validation_metrics(others, 1))


def test_overall_is_the_mean_over_environments_whatever_the_sizes_of_their_panels(rollouts: list[Rollout]) -> None:
    solved, lost = rollouts[1:]
    dbbench = [replace(solved, environment="dbbench", task_id=f"t{i}", success=False, reward=0.0) for i in range(3)]
    alfworld = [replace(solved, environment="alfworld")]
    found = {metric.name: metric.value for metric in validation_metrics([*dbbench, *alfworld], 4)}
    names = ("dbbench", "alfworld", "overall")
    assert [found[f"validation/success/{name}"] for name in names] == [0.0, 1.0, 0.5]
    without = validation_metrics([*dbbench, *alfworld, replace(lost, environment="webshop")], 4)
    assert {m.name: m.value for m in without}["validation/success/overall"] is None, "one environment has no episode"
