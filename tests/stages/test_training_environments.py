"""Training on a part of the mix while validation covers all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage_commands import SingleSource

from rised.config import ConfigError
from rised.records.shards import RunReader
from stages.setup import PANEL_PER_GROUP, load_run

pytestmark = pytest.mark.usefixtures("at_the_root")


def environments(run: Path, kind: str, step: int) -> set[str]:
    return set(RunReader(run).scan(kind, ["environment"], steps=[step])["environment"].to_pylist())


def test_training_rollouts_come_from_the_chosen_environments_and_validation_covers_the_mix(
    single_source: SingleSource,
) -> None:
    for step in range(1, 4):
        assert environments(single_source.run, "rollouts", step) == {"dbbench"}
        assert RunReader(single_source.run).scan("rollouts", ["step"], steps=[step]).num_rows == 8
    for step in range(4):
        assert environments(single_source.run, "validation", step) == {"alfworld", "dbbench"}


def test_without_the_key_a_run_trains_on_the_whole_mix_in_its_order(single_source: SingleSource) -> None:
    assert load_run(single_source.config, "grpo_64", 0).trained_on == ["dbbench"]
    for value in ("null", "[dbbench, alfworld]"):
        whole = load_run(single_source.config, "grpo_64", 0, [f"training_environments={value}"])
        assert whole.trained_on == list(whole.environments) == ["alfworld", "dbbench"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[webshop]", "webshop is not of the mix (alfworld, dbbench)"),
        ("[]", "at least 1"),
        ("[dbbench, dbbench]", "'dbbench' appears twice"),
        ("dbbench", "valid list"),
    ],
)
def test_a_choice_that_is_none_is_refused(single_source: SingleSource, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_run(single_source.config, "grpo_64", 0, [f"training_environments={value}"])
    assert "training_environments" in str(error.value) and words in str(error.value)


def test_the_panel_of_the_one_training_environment_must_hold_all_groups_of_an_update(
    single_source: SingleSource,
) -> None:
    load_run(single_source.config, "grpo_64", 0, ["environments.alfworld.train_tasks=1"])
    short = 2 * PANEL_PER_GROUP - 1
    with pytest.raises(ConfigError, match=f"environments.dbbench.train_tasks is {short}; 2 different groups"):
        load_run(single_source.config, "grpo_64", 0, [f"environments.dbbench.train_tasks={short}"])
