"""The shipped experiment `mapf_smoke` through prepare, evaluate and train; its table; and what is refused of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage_commands import in_process

from analysis.frames import Frames
from analysis.runs import find_experiment
from analysis.tables import mapf, table5
from rised.config import ConfigError
from rised.environments.mapf_frozenlake.environment import FAILURES
from rised.records.shards import RunReader
from stages.dataset_card import GENERATED, sources_of
from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run, refuse_untaggable, write_tasks
from stages.train import train

CONFIG = Path("configs/experiments/mapf_smoke.yaml")
SMALLER = ("updates=1", "environments.mapf_frozenlake.validation_tasks=9", "rollout.environment_workers=1")


@pytest.fixture(autouse=True)
def _at_the_root(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The experiment's results folder, its run finished."""
    folder = tmp_path_factory.mktemp("mapf") / "mapf_smoke"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        experiment = load_experiment(CONFIG, SMALLER)
        tasks = prepare_tasks(experiment)
        write_tasks(folder / "tasks.parquet", tasks)
        evaluate(experiment, tasks, folder / "warm_start")
        train(load_run(CONFIG, "grpo_64", 0, SMALLER), tasks, folder / "warm_start", folder / "grpo_64" / "seed-0")
    return folder


def test_every_way_to_end_is_counted_by_size_in_training_and_validation(runs: Path) -> None:
    metrics = RunReader(runs / "grpo_64" / "seed-0").scan("metrics", steps=[1]).to_pylist()
    found = {row["name"]: row["value"] for row in metrics}
    for prefix, agents in (("rollout", (2,)), ("validation", (3, 4, 5))):
        mine = f"{prefix}/measures/mapf_frozenlake"
        assert found[f"{mine}/valid"] == found[f"{prefix}/success/mapf_frozenlake"]
        for subset in ("", "/size_3", "/size_4", "/size_5"):
            shares = [found[f"{mine}/{name}{subset}"] for name in ("valid", *(f"failure_{kind}" for kind in FAILURES))]
            assert sum(shares) == pytest.approx(1)
        assert {f"{mine}/optimal/agents_{count}" for count in agents} <= set(found)
    assert not (runs / "grpo_64" / "seed-0" / "tags").exists()


def test_the_table_holds_the_rates_of_the_last_evaluation_and_rows_that_add_up(runs: Path) -> None:
    rates, failures = mapf.build(Frames(find_experiment(runs)))
    assert rates.printed.columns[1:5] == ["Valid", "Optimal", "Valid, wait", "Optimal, wait"]
    assert rates.printed.columns[-1] == "Optimal, 5 agents" and len(rates.printed.groups[0].rows) == 1
    sizes = [row[1].text for row in failures.printed.groups[0].rows]
    assert sizes == ["all", "3 x 3", "4 x 4", "5 x 5"]
    for row in failures.printed.groups[0].rows:
        assert sum(cell.value or 0.0 for cell in row[2:]) == pytest.approx(1)


def test_its_tasks_are_known_as_generated_so_that_its_texts_may_be_published(runs: Path) -> None:
    config = (runs / "grpo_64" / "seed-0" / "config.yaml").read_text()
    assert sources_of([config]) == {"mapf_frozenlake": GENERATED}
    own = table5.own_data(Frames(find_experiment(runs)))
    assert own["train_selection"].tolist() == ["generated, synthetic"]


def test_a_run_of_another_environment_has_an_empty_table_and_no_number(tmp_path: Path) -> None:
    from analysis.synthetic import write_experiment

    rates, failures = mapf.build(Frames(find_experiment(write_experiment(tmp_path, ("grpo_64",), (0,), updates=2))))
    assert {cell.text for cell in rates.printed.groups[0].rows[0][1:]} == {"–"}
    assert len(failures.frame) == 0


@pytest.mark.parametrize(
    ("overrides", "method", "words"),
    [
        (["methods=[rised]"], "rised", "method 'rised' decides by tags"),
        (["rubrics.tag_training=always"], "grpo_64", "rubrics.tag_training is 'always'"),
        (["validation.tags=true"], "grpo_64", "validation.tags is true"),
    ],
)
def test_tags_of_an_environment_outside_of_the_vocabulary_are_refused_before_anything_is_played(
    overrides: list[str], method: str, words: str
) -> None:
    refuse_untaggable(load_run(CONFIG, "grpo_64", 0))
    with pytest.raises(ConfigError, match=f"environments.mapf_frozenlake: .*vocabulary.yaml.*{words}"):
        refuse_untaggable(load_run(CONFIG, method, 0, overrides))


def test_the_train_stage_refuses_it_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = in_process(monkeypatch, capsys)
    arguments = ["--config", CONFIG, "--method", "grpo_64", "--seed", 0, "--out", tmp_path / "out"]
    refused = command("train", *arguments, "--set", "rubrics.tag_training=always")
    assert refused.code != 0 and "says nothing of it" in refused.err and not (tmp_path / "out").exists()
