"""Runs that play several steps ahead: which weights play what, whatever is faster, killed, stopped or rounded."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lagged_experiment import assert_same_parts, make_experiment, metric, undisturbed_run
from scripted_judge_server import ScriptedServer
from small_experiments import SmallExperiment
from test_ranks import EPISODE, Job, columns
from test_resume import in_child

from rised.config import ConfigError
from rised.records import faults
from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader
from stages.background import BackgroundPlay
from stages.evaluate import evaluate
from stages.setup import load_experiment, read_tasks

pytestmark = pytest.mark.usefixtures("at_the_root")

AHEAD = ("pipeline.lag=3", "updates=7", "validation.every=5")
VERSIONS = {1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 6: 2, 7: 3}


@pytest.fixture(scope="module")
def experiment(repository: Path, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallExperiment:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        return make_experiment(tmp_path_factory.mktemp("longer_lag"), repository, tiny_policy)


@pytest.fixture(scope="module")
def undisturbed(
    experiment: SmallExperiment, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A run and the names of all places that it offers to die at."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder / "run", undisturbed_run(experiment, repository, folder, *AHEAD)


def test_a_step_is_played_by_the_weights_of_as_many_updates_before_it(undisturbed: tuple[Path, list[str]]) -> None:
    run = undisturbed[0]
    for step, version in VERSIONS.items():
        assert {row["weight_version"] for row in columns(run, "rollouts", step, ["weight_version"])} == {version}
    assert metric(run, "rollout/lag") == {step: float(step - 1 - version) for step, version in VERSIONS.items()}
    assert all((metric(run, "sampler_k3")[step] or 0) > 1e-6 for step in range(2, 8)), "every update changes weights"


def test_a_version_plays_the_same_whenever_it_is_played(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Before the first update the lag makes no difference: what version 0 plays of steps 1 and 2."""
    experiment.train(tmp_path, "rised", "updates=2")
    for step in (1, 2):
        assert columns(tmp_path, "rollouts", step, EPISODE) == columns(undisturbed[0], "rollouts", step, EPISODE)


@pytest.mark.slow
def test_whoever_is_faster_changes_nothing(
    experiment: SmallExperiment,
    undisturbed: tuple[Path, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Episodes are played the moment they are begun, or not before somebody waits for them."""
    begin, join = BackgroundPlay.begin, BackgroundPlay.join

    def begin_at_once(self: BackgroundPlay[Any], work: Callable[..., Any]) -> None:
        begin(self, work)
        self._work[-1].exception()

    def begin_late(self: BackgroundPlay[Any], work: Callable[..., Any]) -> None:
        self._work.append(work)  # type: ignore[arg-type]

    def join_late(self: BackgroundPlay[Any]) -> Any:
        work = self._work.popleft()
        waiting, self._work = self._work, type(self._work)()
        begin(self, work)  # type: ignore[arg-type]
        started: Future[Any] = self._work.pop()
        self._work = waiting
        return started.result()

    for name, ways in {"early": (begin_at_once, join), "late": (begin_late, join_late)}.items():
        monkeypatch.setattr(BackgroundPlay, "begin", ways[0])
        monkeypatch.setattr(BackgroundPlay, "join", ways[1])
        experiment.train(tmp_path / name, "rised", *AHEAD)
        assert reproducible_digest(tmp_path / name) == reproducible_digest(undisturbed[0]), name


@pytest.mark.slow
def test_a_kill_where_a_state_is_written_changes_nothing(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    run, points = undisturbed
    links = [number for number, name in enumerate(points, 1) if name.startswith("link ")]
    assert len(links) >= 3 * (7 - 3) + 3, "every state keeps the weights of the steps ahead"
    for point in links[:: len(links) // 5]:
        folder = tmp_path / f"run-{point}"

        def die_there(folder: Path = folder, point: int = point) -> None:
            faults.arm(kill_at=point)
            experiment.train(folder, "rised", *AHEAD)

        assert in_child(die_there) == signal.SIGKILL, point
        assert in_child(lambda folder=folder: experiment.train(folder, "rised", *AHEAD)) == 0
        assert reproducible_digest(folder) == reproducible_digest(run), f"killed at {points[point - 1]}"


@pytest.mark.slow
def test_a_run_that_goes_on_after_every_step_is_the_same(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    for updates in range(1, 8):
        experiment.train(tmp_path, "rised", *AHEAD, f"updates={updates}")
    assert_same_parts(tmp_path, undisturbed[0], "rollouts/", "tags/", "selections/", "state/")


@pytest.mark.slow
def test_an_engine_with_weights_of_its_own_plays_ahead_while_the_only_other_model_learns(
    experiment: SmallExperiment, tmp_path: Path
) -> None:
    narrow = "model.rollout_dtype=bfloat16"
    evaluate(load_experiment(experiment.config, [narrow]), read_tasks(experiment.tasks), tmp_path / "warm_start")
    narrowed = replace(experiment, warm_start=tmp_path / "warm_start")
    more = (*AHEAD, narrow, "agreement.k3_limit=null")
    narrowed.train(tmp_path / "whole", "rised", *more)
    for updates in (2, 5, 7):
        narrowed.train(tmp_path / "parts", "rised", *more, f"updates={updates}")
    assert_same_parts(tmp_path / "parts", tmp_path / "whole", "rollouts/", "tags/", "state/")


@pytest.mark.slow
def test_a_node_that_only_plays_ahead_agrees_with_one_process_alone(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], repository: Path, tmp_path: Path
) -> None:
    sets = [part for word in (*AHEAD, "placement.rollout_nodes=1") for part in ("--set", word)]
    for updates in (3, 7):
        assert Job(experiment, repository, tmp_path, 2, 1, *sets, "--set", f"updates={updates}").end() == [0, 0]
    for step in VERSIONS:
        assert columns(tmp_path, "rollouts", step, EPISODE) == columns(undisturbed[0], "rollouts", step, EPISODE), step


@pytest.mark.parametrize("lag", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_tags_of_a_judge_model_are_those_of_their_own_batch(
    experiment: SmallExperiment, tmp_path: Path, lag: int
) -> None:
    """Also those of a validation that comes while batches of later steps still lack theirs."""
    with ScriptedServer(latency_s=0.1) as server:
        judge = f"rubrics.judge={{type: llm, model: m, endpoint: {server.url}, streaming: true, concurrency: 4}}"
        more = (judge, f"pipeline.lag={lag}", "updates=4", "validation.every=2", "validation.tags=true")
        tagged = replace(experiment, warm_start=tmp_path / "warm_start")
        evaluate(load_experiment(experiment.config, more), read_tasks(experiment.tasks), tmp_path / "warm_start")
        tagged.train(tmp_path / "run", "rised", *more)
    reader = RunReader(tmp_path / "run")
    for kind, tags, steps in (("rollouts", "tags", (1, 2, 3, 4)), ("validation", "validation_tags", (2, 4))):
        for step in steps:
            played = [row["rollout_id"] for row in reader.scan(kind, steps=[step]).to_pylist()]
            found = reader.scan(tags, steps=[step]).to_pylist()
            assert list(dict.fromkeys(row["rollout_id"] for row in found)) == played, (kind, step)
            assert {row["status"] for row in found} == {"ok"}


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("rised", ("pipeline.lag=9",), "pipeline.lag"),
        ("rised", ("engine={type: vllm, handover: nccl}",), r"engine\.handover: files"),
        ("orsd", (), r"pipeline\.lag: 1, or another method\.teacher\.writer"),
    ],
)
def test_what_cannot_play_ahead_is_refused(
    experiment: SmallExperiment, method: str, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment.run_config(method, "pipeline.lag=2", *overrides)
