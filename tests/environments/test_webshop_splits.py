"""WebShop's splits: by product where the catalogue is generated, and content that no index or order can hide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rised.config import ConfigError
from rised.environments.base import Task
from rised.environments.discovery import get
from rised.environments.webshop import WebshopSettings, prepare
from rised.environments.webshop.goals import Goal
from rised.environments.webshop.tasks import content_hash, split_of
from stages.prepare import prepare_tasks
from stages.setup import load_experiment

SPEC = get("webshop")


@pytest.fixture(scope="module")
def panels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Task]]:
    """As many tasks as each split has."""
    settings = WebshopSettings(cache_dir=str(tmp_path_factory.getbasetemp() / "webshop"))
    return {split: prepare(settings, split, n, 0) for split, n in (("train", 1319), ("validation", 208), ("sft", 865))}


def test_no_two_splits_want_the_same_product_and_no_panel_the_same_twice(panels: dict[str, list[Task]]) -> None:
    for split, panel in panels.items():
        assert {split_of(task.payload["goal"]["asin"]) for task in panel} == {split}
        assert len({task.content_hash for task in panel}) == len(panel)
        for other in panels.keys() - {split}:
            assert SPEC.overlap(panel, panels[other]) == {"tasks": 0, "products": 0, "instructions": 0}


def test_content_is_what_is_wanted_whatever_its_index_order_and_wording(panels: dict[str, list[Task]]) -> None:
    task = next(task for task in panels["train"] if len(task.payload["goal"]["options"]) > 1)
    goal = Goal.from_payload(task.payload["goal"])
    same = replace(
        goal, attributes=goal.attributes[::-1], options=goal.options[::-1], instruction="In other words.", query="x"
    )
    assert content_hash(task.payload["shop"], same) == task.content_hash
    others = [
        replace(goal, asin="S000000000"),
        replace(goal, options=goal.options[:1]),
        replace(goal, attributes=(*goal.attributes, "washable")),
        replace(goal, price_upper=goal.price_upper + 10),
    ]
    hashes = [content_hash(task.payload["shop"], other) for other in others] + [content_hash("another shop", goal)]
    assert len({*hashes, task.content_hash}) == 6


def test_prepare_refuses_a_validation_task_that_is_a_training_task_under_another_index(
    panels: dict[str, list[Task]],
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(repository)
    train = panels["train"][:20]
    again = replace(train[3], split="validation", task_id="webshop-validation-99999", seed=99_999)
    leaky = {"train": train, "validation": [*panels["validation"][:9], again]}
    spec = replace(SPEC, prepare=lambda settings, split, count, seed: leaky[split])
    monkeypatch.setattr("stages.prepare.get", lambda name: spec)
    config = load_experiment(Path("configs/experiments/smoke.yaml"))

    def prepared(**settings: object) -> list[Task]:
        mix = {"webshop": SimpleNamespace(train_tasks=20, validation_tasks=10, settings=SimpleNamespace(**settings))}
        return prepare_tasks(config.model_copy(update={"environments": mix}))

    with pytest.raises(ConfigError, match="webshop: 1 validation tasks are training tasks as well"):
        prepared(source="generated")
    assert len(prepared(source="files")) == 30, "a benchmark's own splits are kept"
    assert "in common with training: 1 tasks, 1 products, 1 instructions" in capsys.readouterr().out
