"""A run whose rollouts a real vLLM generates, on the three environments: trained, stopped, resumed (`make test-vllm`).

What is stored is held against the policies themselves: the log-probabilities of every step's rollouts are those of the
weights that the step should have been played with.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from rised.models.loading import load_policy
from rised.models.scoring import sequence_logprobs
from rised.models.settings import ModelSettings
from rised.records.schemas import from_table
from rised.records.shards import RunReader
from rised.records.types import Rollout
from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, load_run
from stages.train import train

pytestmark = pytest.mark.vllm

ENVIRONMENT = ".venv-vllm"
EXPERIMENT = """
extends: [{repository}/configs/experiments/smoke.yaml]
experiment: with_vllm
methods: [rised]
seeds: [0]
method_scale: {{candidate_groups: 3, selected_groups: 2}}
rollouts_per_group: 4
environments:
  alfworld: {{train_tasks: 6, validation_tasks: 2}}
  webshop: {{train_tasks: 6, validation_tasks: 2}}
  dbbench: {{train_tasks: 6, validation_tasks: 2}}
rollout: {{environment_workers: 1}}
learner: {{learning_rate: 1.0e-3, threads: 1}}
engine:
  type: vllm
  python: {python}
  use_gpus: false
  arguments: [--enforce-eager]
  environment: {{VLLM_CPU_KVCACHE_SPACE: "1", OMP_NUM_THREADS: "1", TORCHDYNAMO_DISABLE: "1"}}
"""


def policy(folder: Path) -> PreTrainedModel:
    return load_policy(ModelSettings(path=str(folder)))[0]


def largest_difference(model: PreTrainedModel, rollouts: list[Rollout]) -> float:
    """Of the stored log-probabilities from the model's own."""
    scored = sequence_logprobs(model, [r.token_ids for r in rollouts], [r.policy_mask for r in rollouts])
    return max(
        float(np.abs(values.detach().numpy() - np.array(rollout.logprobs)).max())
        for rollout, values in zip(rollouts, scored, strict=True)
        if rollout.logprobs
    )


@pytest.mark.parametrize(("lag", "stops"), [(0, (1, 2)), (2, (2, 4))], ids=["synchronous", "two steps ahead"])
def test_a_run_plays_each_step_with_the_weights_that_it_should_and_goes_on_after_a_stop(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int, stops: tuple[int, int]
) -> None:
    if not (repository / ENVIRONMENT / ".ready").is_file():
        pytest.skip("vLLM is not set up here: make vllm")
    monkeypatch.chdir(repository)
    torch.set_num_threads(1)
    file = tmp_path / "with_vllm.yaml"
    file.write_text(EXPERIMENT.format(repository=repository, python=repository / ENVIRONMENT / "bin" / "python"))
    experiment = load_experiment(file)
    tasks = prepare_tasks(experiment)
    evaluate(experiment, tasks, tmp_path / "warm_start")
    last = stops[-1]
    ahead = [f"pipeline.lag={lag}", "method.policy_loss.truncated_importance=2.0", f"validation.every={last}"]
    for updates in stops:
        config = load_run(file, "rised", 0, [f"updates={updates}", "export_every=1", *ahead])
        train(config, tasks, tmp_path / "warm_start", tmp_path / "run")
    reader = RunReader(tmp_path / "run")
    assert reader.steps() == [*range(last + 1)] and reader.done
    assert reader.header()["packages"]["vllm"].startswith("0.")
    played = {step: from_table(reader.scan("rollouts", steps=[step])) for step in range(1, last + 1)}
    checkpoints = tmp_path / "run" / "checkpoints"
    exported = {step: policy(next(checkpoints.glob(f"*{step}"))) for step in range(1, last + 1)}
    weights = {0: policy(Path("data/nano_policy")), **exported}
    for step, rollouts in played.items():
        assert len(rollouts) == 12 and {r.environment for r in rollouts} == {"alfworld", "webshop", "dbbench"}
        assert {r.weight_version for r in rollouts} == {max(0, step - 1 - lag)}
        assert all(r.turns for r in rollouts)
    validated = from_table(reader.scan("validation", steps=[last]))
    for version, rollouts in (*((max(0, step - 1 - lag), found) for step, found in played.items()), (last, validated)):
        own = largest_difference(weights[version], rollouts)
        others = [largest_difference(weights[other], rollouts) for other in weights if other != version]
        print(f"\nversion {version}: at most {own:.1e} from its own weights, {min(others):.1e} from any other's")
        assert own < 1e-3 < min(others)
