"""Where a policy lies: on its process's device where something is computed with it, else in host memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rised.experiment import RunConfig
from rised.learner.learner import Learner
from rised.learner.settings import LearnerSettings
from rised.models.devices import own_device, own_index
from stages.policy import open_policy
from stages.ranks import Layout, Ranks
from stages.setup import load_run
from stages.workers import WorkerGroup

QUICKSTART = Path("configs/experiments/quickstart.yaml")
TINY = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture
def placed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that processes took, in the order in which they asked for them. On a machine without GPUs the CPU
    stands for one.
    """
    found: list[torch.device] = []

    def device() -> torch.device:
        found.append(own_device())
        return found[-1]

    monkeypatch.chdir(repository)
    monkeypatch.setattr("stages.policy.own_device", device)
    monkeypatch.setattr("rised.models.engines.vllm_version", lambda settings: "0")
    return found


def run(*overrides: str) -> RunConfig:
    return load_run(QUICKSTART, "rised", 0, overrides)


@pytest.mark.parametrize(
    ("overrides", "process", "takes_one"),
    [
        ([], {}, True),
        ([], {"plays": False}, False),
        ([], {"plays": False, "computes": True}, True),
        (["engine.type=vllm"], {}, False),
        (["engine.type=vllm"], {"computes": True}, True),
    ],
)
def test_a_policy_takes_a_device_where_something_is_computed_with_it(
    placed: list[torch.device], overrides: list[str], process: dict[str, bool], takes_one: bool
) -> None:
    """Else its weights are handed on only, from host memory."""
    policy = open_policy(run(*overrides), **process)
    assert [policy.model.device] == (placed or [torch.device("cpu")]) and bool(placed) is takes_one


@pytest.mark.parametrize(
    ("rank", "overrides", "takes_one"),
    [
        (0, [], False),  # it learns only: its learner has the device
        (1, [], True),  # it plays
        (1, ["engine.type=vllm"], False),  # its servers play
    ],
)
def test_each_process_of_a_job_has_the_policy_where_it_needs_it(
    placed: list[torch.device], rank: int, overrides: list[str], takes_one: bool
) -> None:
    """Two nodes, of which the last one only plays."""
    WorkerGroup(run(*overrides), Ranks(rank, Layout(2, 1, rollout_nodes=1)))
    assert bool(placed) is takes_one


def test_the_plain_learner_brings_policy_and_reference_to_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rised.learner.learner.own_device", lambda: torch.device("meta"))
    models = [Qwen2ForCausalLM(Qwen2Config(**TINY)) for _ in range(2)]
    learner = Learner(models[0], models[1], LearnerSettings(), temperature=1.0)
    assert learner.device.type == "meta" and models[1].device.type == "meta"
    assert {p.device.type for group in learner.optimizer.param_groups for p in group["params"]} == {"meta"}


def test_processes_of_a_node_share_its_gpus_out() -> None:
    place = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    assert [own_index(count, place) for count in (8, 4, 1, 2)] == [6, 3, 0, 1]
    assert own_index(8, {}) == 0
    assert own_device({}) == torch.device("cpu") or torch.cuda.is_available()
