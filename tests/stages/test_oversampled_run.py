"""A run that begins more groups than it needs: each step has as many whole groups as ever, and counts what it gave up.

The engine takes single requests, as vLLM's servers do, but generates in this process: what is tested is the loop.
"""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from test_ranks import columns
from transformers import PreTrainedModel

import rised.models.engines
from rised.config import ConfigError
from rised.models.engine import TransformersEngine
from rised.models.protocols import Answer, Generated, GenerationRequest
from rised.models.randomness import episode_uniforms
from stages.loop import begun, quotas, training_plans
from stages.setup import load_run, read_tasks
from stages.train import train

ENGINE = ("engine={type: vllm}", "rollout.oversample=0.5", "rollout.cohort_size=8")


class OneByOne:
    """Answers requests one after the other, those of some groups late."""

    copies_weights, in_process, concurrency = True, False, 64

    def __init__(self, model: PreTrainedModel, end_token_id: int) -> None:
        self._engine = TransformersEngine(copy.deepcopy(model).eval(), end_token_id)
        self._lock, self._threads = threading.Lock(), ThreadPoolExecutor(8)
        self.version: int | None = None
        self.max_positions = 1 << 20
        self.tokens_fed = self.tokens_generated = 0

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()

    def load_weights(self, source: PreTrainedModel, weight_version: int | None = None) -> None:
        self._engine.model.load_state_dict(source.state_dict())
        self.version = weight_version

    def submit(self, request: GenerationRequest) -> Future[Answer]:
        return self._threads.submit(self._answer, request)

    def _answer(self, request: GenerationRequest) -> Answer:
        if "-000-" in request.affinity:
            time.sleep(0.3)
        uniforms = [episode_uniforms(request.seed, request.max_new_tokens)]
        with self._lock:
            session = self._engine.session(1, request.temperature)
            (reply,) = session.generate([0], [list(request.token_ids)], [request.max_new_tokens], uniforms)
            self.tokens_generated += len(reply.token_ids)
        return Answer(Generated(reply.token_ids, reply.logprobs, reply.ended, self.version), list(request.token_ids))


class Kind:
    in_process = False

    def packages(self, settings: Any) -> dict[str, str]:
        return {}

    def make(
        self, settings: Any, model: PreTrainedModel, end_token_id: int, dtype: Any, version: int | None
    ) -> OneByOne:
        return OneByOne(model, end_token_id)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.chdir(repository)
    kinds = {**rised.models.engines.ENGINES, "vllm": Kind()}
    for place in ("rised.models.engines", "stages.policy"):
        monkeypatch.setattr(f"{place}.ENGINES", kinds)


def test_each_step_has_whole_groups_as_many_as_it_needs_and_counts_the_others(
    one_by_one: None, tiny_experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.train.refuse_other_basis", lambda *_: None)  # the warm start had another engine
    config = load_run(tiny_experiment.config, "rised", 0, ENGINE)
    train(config, read_tasks(tiny_experiment.tasks), tiny_experiment.warm_start, tmp_path / "run")
    size, needed = config.rollouts_per_group, config.method.candidate_groups
    spare = sum(begun(config, needed, config.trained_on, 1).values()) - needed
    assert spare >= 1
    for step in (1, 2):
        rows = columns(tmp_path / "run", "rollouts", step, ("group_id", "environment"))
        groups = {row["group_id"] for row in rows}
        assert len(rows) == needed * size and len(groups) == needed
        by_environment = {
            name: len({r["group_id"] for r in rows if r["environment"] == name}) for name in config.trained_on
        }
        assert by_environment == quotas(needed, config.trained_on, step)
        counts = {row["name"]: row["value"] for row in columns(tmp_path / "run", "timings", step, ("name", "value"))}
        begun_now = sum(begun(config, needed, config.trained_on, step).values())
        assert counts["rollout/cancelled"] == (begun_now - needed) * size


def test_the_next_step_goes_on_behind_all_tasks_that_were_begun(tiny_experiment: Any, repository: Path) -> None:
    config = load_run(tiny_experiment.config, "rised", 0, ENGINE)
    panels = {
        name: [task for task in read_tasks(tiny_experiment.tasks) if task.environment == name and task.split == "train"]
        for name in config.trained_on
    }
    drawn = []
    cursors = dict.fromkeys(config.trained_on, 0)
    for step in (1, 2):
        plans = training_plans(config, panels, cursors, {}, None, 3, step, "run")  # type: ignore[arg-type]
        counts = begun(config, 3, config.trained_on, step)
        assert {name: len({p.group_id for p in plans if p.task.environment == name}) for name in counts} == counts
        needed = {p.group_id for p in plans if not p.spare}
        assert len(needed) == 3
        drawn += sorted({(p.task.environment, p.task.task_id) for p in plans})
        cursors = {name: cursors[name] + counts[name] for name in cursors}
    assert len(drawn) == len(set(drawn)), "no task comes twice"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("rollout.oversample=0.5",), "episodes of engine.type transformers advance together"),
        ((*ENGINE, "rollout.cohort_size=6"), r"cohort_size \(6\) must be a multiple of rollouts_per_group"),
        ((*ENGINE, "rollout.oversample=1.5"), "less than or equal to 1"),
    ],
)
def test_what_cannot_be_oversampled_is_refused(tiny_experiment: Any, overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_run(tiny_experiment.config, "rised", 0, overrides)
