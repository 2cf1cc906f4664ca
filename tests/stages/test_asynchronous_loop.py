"""A run whose episodes are played one update behind: which weights play what, and that timing changes nothing."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lagged_experiment import assert_same_parts, make_experiment, metric, undisturbed_run
from small_experiments import SmallExperiment
from test_ranks import EPISODE, Job, await_file, columns
from test_resume import in_child
from transformers import AutoModelForCausalLM

import stages.workers
from rised.config import ConfigError
from rised.learner.errors import LearnerError
from rised.learner.learner import Learner
from rised.models.scoring import sequence_logprobs
from rised.models.writing import WritingRequest, Written
from rised.records import faults
from rised.records.digest import reproducible_digest
from rised.records.shards import RunReader
from stages.attempts import STOPPED
from stages.background import BackgroundPlay
from stages.evaluate import evaluate
from stages.setup import load_experiment, read_tasks
from stages.workers import WorkerGroup

pytestmark = pytest.mark.usefixtures("at_the_root")

LIST = "\n".join(f"{n}. Check the {word} first." for n, word in enumerate("table column value order limit".split(), 1))


@pytest.fixture(scope="module")
def experiment(repository: Path, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallExperiment:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        return make_experiment(tmp_path_factory.mktemp("lagged"), repository, tiny_policy)


@pytest.fixture(scope="module")
def undisturbed(
    experiment: SmallExperiment, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A run and the names of all places that it offers to die at."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder / "run", undisturbed_run(experiment, repository, folder)


def test_a_step_is_played_by_the_weights_of_two_updates_before_it(undisturbed: tuple[Path, list[str]]) -> None:
    run = undisturbed[0]
    for step, version in {1: 0, 2: 0, 3: 1, 4: 2}.items():
        assert {row["weight_version"] for row in columns(run, "rollouts", step, ["weight_version"])} == {version}
    assert metric(run, "rollout/lag") == {1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0}
    apart = metric(run, "sampler_k3")
    assert (apart[1] or 1) < 1e-9, "the first step's learner is its sampler"
    assert all((apart[step] or 0) > 1e-6 for step in (2, 3, 4)), "every update changes the weights"
    assert metric(run, "rl/truncated_share").keys() == {1, 2, 3, 4}


def test_the_versions_that_play_are_those_that_were_exported(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Step 4 is played by version 2, its validation by version 4, as the exports of those steps play them."""
    run, tasks = undisturbed[0], read_tasks(experiment.tasks)
    exported = load_experiment(experiment.config, [f"model.path={run / 'checkpoints/step-000004'}"])
    evaluate(exported, tasks, tmp_path / "validated")
    row = ("task_id", "token_ids", "logprobs")
    assert columns(run, "validation", 4, row) == columns(tmp_path / "validated", "validation", 0, row)
    episodes = columns(run, "rollouts", 4, ("token_ids", "policy_mask", "logprobs"))
    apart = {}
    for version in (2, 4):
        model = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / f"step-00000{version}", dtype=torch.float32)
        ids, masks = ([e[key] for e in episodes] for key in ("token_ids", "policy_mask"))
        with torch.no_grad():
            scores = sequence_logprobs(model, ids, masks)  # type: ignore[arg-type]
        apart[version] = max(
            float((one - torch.tensor(e["logprobs"])).abs().max()) for one, e in zip(scores, episodes, strict=True)
        )
    assert apart[2] < 1e-4 < 1e-2 < apart[4]


def test_the_same_seed_twice_gives_the_same_bytes_whoever_is_faster(
    experiment: SmallExperiment,
    undisturbed: tuple[Path, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All episodes played before the update that they overlap with, and all of them after it."""

    def begin_at_once(self: BackgroundPlay[Any], work: Callable[..., Any]) -> None:
        begin(self, work)
        self._work[-1].exception()

    def begin_late(self: BackgroundPlay[Any], work: Callable[..., Any]) -> None:
        self._work.append(work)  # type: ignore[arg-type]

    def join_late(self: BackgroundPlay[Any]) -> Any:
        begin(self, self._work.popleft())  # type: ignore[arg-type]
        return join(self)

    begin, join = BackgroundPlay.begin, BackgroundPlay.join
    expected = reproducible_digest(undisturbed[0])
    for name, ways in {"early": (begin_at_once, join), "late": (begin_late, join_late)}.items():
        monkeypatch.setattr(BackgroundPlay, "begin", ways[0])
        monkeypatch.setattr(BackgroundPlay, "join", ways[1])
        experiment.train(tmp_path / name, "rised")
        assert reproducible_digest(tmp_path / name) == expected, name


@pytest.mark.slow
def test_more_environment_workers_change_nothing(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    experiment.train(tmp_path, "rised", "rollout.environment_workers=2", "pipeline.defer_saving=false")
    other, expected = reproducible_digest(tmp_path), reproducible_digest(undisturbed[0])
    assert {name for name in expected if other[name] != expected[name]} == {"config.yaml"}


@pytest.mark.parametrize(("anywhere", "behind"), [(1, 3), pytest.param(12, 6, marks=pytest.mark.slow)])
def test_a_kill_at_many_places_changes_nothing(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path, anywhere: int, behind: int
) -> None:
    """Anywhere, and where the background thread writes a state, links the weights that play, or exports."""
    run, points = undisturbed
    expected = reproducible_digest(run)
    deferred = [n for n, name in enumerate(points, 1) if name.startswith(("state ", "link ", "export "))]
    assert len(deferred) >= 15
    chooses = random.Random(2)
    chosen = sorted({*chooses.sample(range(1, len(points) + 1), anywhere), *chooses.sample(deferred, behind)})
    for point in chosen:
        folder = tmp_path / f"run-{point}"

        def die_there(folder: Path = folder, point: int = point) -> None:
            faults.arm(kill_at=point)
            experiment.train(folder, "rised")

        assert in_child(die_there) == signal.SIGKILL, point
        assert in_child(lambda folder=folder: experiment.train(folder, "rised")) == 0
        assert reproducible_digest(folder) == expected, f"killed at {points[point - 1]}"


def test_kills_at_random_moments_of_one_run_change_nothing(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    moments, run = random.Random(3), tmp_path / "run"
    for step in (0, 2):
        manifest = run / "manifests" / f"step-{step:06d}.json"
        in_child(lambda: experiment.train(run, "rised"), manifest.exists, moments.uniform(0, 0.1))
    assert in_child(lambda: experiment.train(run, "rised")) == 0
    assert reproducible_digest(run) == reproducible_digest(undisturbed[0])


def test_a_finished_run_that_gets_more_updates_goes_on_as_if_it_had_never_ended(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    experiment.train(tmp_path, "rised", "updates=2")
    experiment.train(tmp_path, "rised")
    parts = ("rollouts/", "tags/", "selections/", "state/", "checkpoints/step-000004")
    assert_same_parts(tmp_path, undisturbed[0], *parts)


@pytest.mark.slow
def test_an_engine_with_weights_of_its_own_plays_them_while_the_only_other_model_learns(
    experiment: SmallExperiment, tmp_path: Path
) -> None:
    """Rollouts in bfloat16: learner and policy are one model, and a restart has to restore two versions through it."""
    narrow = "model.rollout_dtype=bfloat16"
    evaluate(load_experiment(experiment.config, [narrow]), read_tasks(experiment.tasks), tmp_path / "warm_start")
    narrowed = replace(experiment, warm_start=tmp_path / "warm_start")
    narrowed.train(tmp_path / "whole", "rised", narrow, "agreement.k3_limit=null")
    for updates in (1, 3, 4):
        narrowed.train(tmp_path / "parts", "rised", narrow, f"updates={updates}", "agreement.k3_limit=null")
    assert_same_parts(tmp_path / "parts", tmp_path / "whole", "rollouts/", "tags/", "state/")


def test_a_wish_to_stop_ends_the_run_without_waiting_for_the_next_steps_episodes(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    def stopped() -> None:
        learn = Learner.update

        def update_and_ask(self: Learner, *arguments: Any) -> Any:
            os.kill(os.getpid(), signal.SIGUSR2)  # after the next step's episodes were begun
            return learn(self, *arguments)

        Learner.update = update_and_ask  # type: ignore[method-assign]
        with pytest.raises(SystemExit) as exit_:
            experiment.train(tmp_path / "run", "rised")
        assert exit_.value.code == STOPPED
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("player")]

    for step in (1, 2):
        assert in_child(stopped) == 0
        assert RunReader(tmp_path / "run").steps()[-1] == step
    assert in_child(lambda: experiment.train(tmp_path / "run", "rised")) == 0
    assert reproducible_digest(tmp_path / "run") == reproducible_digest(undisturbed[0])


def test_a_policy_that_writes_does_so_while_nobody_plays(
    experiment: SmallExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ORSD's writer asks the engine between rollouts and update; the next episodes begin after it."""
    write, collect, playing = stages.workers.write, WorkerGroup._collect, threading.Lock()

    def readable(engine: Any, rendering: Any, request: WritingRequest) -> list[Written]:
        assert playing.acquire(blocking=False), "the engine is playing"
        written = write(engine, rendering, request)
        playing.release()
        return [Written(LIST, True) for _ in written]

    def locked_collect(self: WorkerGroup, *arguments: Any, **named: Any) -> Any:
        with playing:
            return collect(self, *arguments, **named)

    monkeypatch.setattr(stages.workers, "write", readable)
    monkeypatch.setattr(WorkerGroup, "_collect", locked_collect)
    experiment.train(tmp_path / "whole", "orsd")
    experiment.train(tmp_path / "parts", "orsd", "updates=2")
    experiment.train(tmp_path / "parts", "orsd")
    assert all((metric(tmp_path / "whole", "gradient_norm")[step] or 0) > 0 for step in (1, 2, 3, 4))
    assert_same_parts(tmp_path / "parts", tmp_path / "whole", "rollouts/", "rubric_bundles/", "state/")


def test_processes_that_play_and_learn_and_a_node_that_only_plays_agree_with_one_alone(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], repository: Path, tmp_path: Path
) -> None:
    """A node that only plays: every step as one process alone. Two that learn: until sums of two ranks are played."""
    alone = undisturbed[0]
    for name, extra in {"split": ("--set", "placement.rollout_nodes=1"), "pair": ()}.items():
        run = tmp_path / name
        assert Job(experiment, repository, run, 2, 1, *extra).end() == [0, 0]
        for step in (1, 2, 3, 4) if name == "split" else (1, 2):
            assert columns(run, "rollouts", step, EPISODE) == columns(alone, "rollouts", step, EPISODE), (name, step)


def test_a_job_that_is_stopped_and_then_loses_a_process_ends_in_the_same_bytes(
    experiment: SmallExperiment, repository: Path, tmp_path: Path
) -> None:
    extra = ("--set", "placement.rollout_nodes=1")
    assert Job(experiment, repository, tmp_path / "whole", 2, 1, *extra).end() == [0, 0]
    run = tmp_path / "run"
    job = Job(experiment, repository, run, 2, 1, *extra)
    await_file(run / ".attempts.jsonl")
    job.processes[0].send_signal(signal.SIGUSR2)
    assert job.end() == [STOPPED] * 2
    job = Job(experiment, repository, run, 2, 1, *extra)
    await_file(run / "manifests" / "step-000002.json")
    job.processes[1].send_signal(signal.SIGKILL)
    codes = job.end()
    assert codes[1] == -signal.SIGKILL and codes[0] != 0
    assert Job(experiment, repository, run, 2, 1, *extra).end() == [0, 0]
    assert reproducible_digest(run) == reproducible_digest(tmp_path / "whole")


def timings(run: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for row in RunReader(run).scan("timings").to_pylist():
        found.setdefault(row["step"], {})[row["name"]] = row["value"]
    return found


def test_a_steps_seconds_sum_up_and_overlapping_ones_count_once(
    experiment: SmallExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Playing and learning are made slower by the same: a step takes both, with a lag little more than one of them."""
    slow_s = 2.0
    collect, learn = WorkerGroup._collect, Learner.update

    def slow_collect(self: WorkerGroup, *arguments: Any, **named: Any) -> Any:
        time.sleep(slow_s)
        return collect(self, *arguments, **named)

    def slow_learn(self: Learner, *arguments: Any) -> Any:
        time.sleep(slow_s)
        return learn(self, *arguments)

    monkeypatch.setattr(WorkerGroup, "_collect", slow_collect)
    monkeypatch.setattr(Learner, "update", slow_learn)
    steps = {}
    for lag in (0, 1):
        experiment.train(tmp_path / str(lag), "rised", f"pipeline.lag={lag}", "updates=3", "validation.every=2")
        for parts in timings(tmp_path / str(lag)).values():
            total = sum(value for name, value in parts.items() if name.startswith("time/") and name != "time/step")
            assert total == pytest.approx(parts["time/step"]) and parts["time/other"] >= slow_s * 0.9
        steps[lag] = timings(tmp_path / str(lag))
    for step in (2, 3):
        assert steps[0][step]["time/step"] > 2 * slow_s
        assert steps[1][step]["time/step"] < 0.8 * steps[0][step]["time/step"]
        assert steps[1][step]["time/rollout_wait"] < steps[0][step]["time/rollout_wait"]


def test_episodes_and_update_really_go_on_at_the_same_time(
    experiment: SmallExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two waits until the other has begun: one after the other, they would wait in vain."""
    begun = {name: [threading.Event() for _ in range(5)] for name in ("playing", "learning")}
    collect, learn = WorkerGroup._collect, Learner.update

    def met_collect(self: WorkerGroup, plans: Any, *arguments: Any, **named: Any) -> Any:
        step = plans[0].step
        if plans[0].split == "train" and step > 1:
            begun["playing"][step].set()
            assert begun["learning"][step - 1].wait(240), "the update before was not begun"
        return collect(self, plans, *arguments, **named)

    def met_learn(self: Learner, *arguments: Any) -> Any:
        step = self.updates + 1
        begun["learning"][step].set()
        assert step == 4 or begun["playing"][step + 1].wait(240), "the next episodes were not begun"
        return learn(self, *arguments)

    monkeypatch.setattr(WorkerGroup, "_collect", met_collect)
    monkeypatch.setattr(Learner, "update", met_learn)
    experiment.train(tmp_path, "rised")


def test_a_full_disk_in_the_background_ends_the_run_with_its_reason(
    experiment: SmallExperiment, undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """The optimiser's file is larger than what may be written; that of step 0 is empty yet."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, resource.RLIM_INFINITY))
        with pytest.raises(LearnerError, match=r"state could not be written to .*step-000001"):
            experiment.train(tmp_path / "run", "rised")

    assert in_child(full) == 0
    assert RunReader(tmp_path / "run").steps() == [0]
    assert not [path for path in (tmp_path / "run").rglob("step-*") if path.stem > "step-000000"]
    assert in_child(lambda: experiment.train(tmp_path / "run", "rised")) == 0
    assert reproducible_digest(tmp_path / "run") == reproducible_digest(undisturbed[0])


def test_an_alarm_that_is_to_end_the_run_names_the_causes(experiment: SmallExperiment, tmp_path: Path) -> None:
    strict = ["agreement.k3_limit_stale=1e-12", "agreement.stop_after=2"]
    with pytest.raises(LearnerError, match=r"step 3: sampler and learner .* tied output layer"):
        experiment.train(tmp_path, "rised", *strict)
    assert metric(tmp_path, "agreement/alarm") == {1: 0.0, 2: 1.0}


@pytest.mark.parametrize("method", ["rised", "orsd"])
def test_a_lag_without_a_weight_for_older_tokens_is_refused(experiment: SmallExperiment, method: str) -> None:
    with pytest.raises(ConfigError, match=r"method\.policy_loss\.truncated_importance is null.*pipeline\.lag: 0"):
        experiment.run_config(method, "method.policy_loss.truncated_importance=null")
