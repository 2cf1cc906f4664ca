"""The learner's type decides its keys, and mistakes are answered with the mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from rised.config import ConfigError
from rised.learner.settings import DeepSpeedLearnerSettings, LearnerSettings
from stages.setup import load_experiment

QUICKSTART = Path("configs/experiments/quickstart.yaml")


@pytest.fixture(autouse=True)
def _in_the_repository(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)


def test_without_a_type_the_learner_is_the_plain_one() -> None:
    assert type(load_experiment(QUICKSTART).learner) is LearnerSettings


def test_the_type_chooses_the_keys() -> None:
    settings = load_experiment(QUICKSTART, ["learner.type=deepspeed", "learner.zero_stage=1"]).learner
    assert isinstance(settings, DeepSpeedLearnerSettings)
    assert (settings.zero_stage, settings.reference, settings.learning_rate) == (1, "resident", 1e-4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["learner.type=deepsped"], "learner: type should be 'torch' or 'deepspeed'"),
        (["learner.zero_stage=2"], r"learner\.zero_stage: this key belongs to another type of learner"),
        (["learner.type=deepspeed", "learner.zero_stage=5"], r"learner\.zero_stage: Input should be 0, 1, 2 or 3"),
        (["learner.type=deepspeed", "learner.zero_stag=1"], "did you mean 'zero_stage'"),
        (["learner.type=deepspeed", "learner.zero_stage=3"], "gradient_share_every: 0"),
    ],
)
def test_mistakes_are_answered_with_the_mend(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_experiment(QUICKSTART, overrides)
