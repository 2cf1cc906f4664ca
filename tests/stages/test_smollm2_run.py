"""SmolLM2-135M trained end to end: vLLM plays, two DeepSpeed processes learn. Slow: `make test-nightly`.

The experiment is the shipped one; that small a model solves nothing, but its teacher's hints give each update a
gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file
from test_ranks import Job, columns

from rised.records.shards import RunReader
from stages.evaluate import evaluate
from stages.prepare import prepare_tasks
from stages.setup import load_experiment, read_tasks, write_tasks

pytestmark = pytest.mark.nightly

ENVIRONMENT = ".venv-vllm"
CONFIG = Path("configs/experiments/smollm2_cpu.yaml")
METHOD = "all_rubric_sd"
MOST_S = 3600
TABLE_9 = ("rollout_wait", "tag_wait", "reference", "teacher", "actor", "other")


@dataclass(frozen=True)
class Paths:
    """As jobs want them."""

    config: Path
    tasks: Path
    warm_start: Path


@pytest.fixture(scope="module")
def run(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install 'rised[deepspeed]'")
    if not (repository / ENVIRONMENT / ".ready").is_file():
        pytest.skip("vLLM is not set up here: make vllm")
    folder = tmp_path_factory.mktemp("smollm2")
    paths = Paths(repository / CONFIG, folder / "tasks.parquet", folder / "warm_start")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        experiment = load_experiment(CONFIG)
        write_tasks(paths.tasks, prepare_tasks(experiment))
        evaluate(experiment, read_tasks(paths.tasks), paths.warm_start)
    job = Job(paths, repository, folder / "run", 3, 1, "--method", METHOD, "--set", "export_every=1")
    assert job.end(MOST_S) == [0, 0, 0]
    return folder / "run"


def test_every_step_is_played_by_vllm_and_learned_by_two_processes(run: Path) -> None:
    reader = RunReader(run)
    assert reader.done and reader.steps() == [0, 1, 2]
    assert {"vllm", "deepspeed"} <= set(reader.header()["packages"])
    for step in (1, 2):
        assert reader.manifest(step).extra["learner_ranks"] == 2
        rollouts = columns(run, "rollouts", step, ("environment", "weight_version", "turns"))
        assert {row["environment"] for row in rollouts} == {"alfworld", "webshop", "dbbench"}
        assert {row["weight_version"] for row in rollouts} == {step - 1}


def test_each_update_learns_and_its_sampler_agrees_with_its_trainer(run: Path) -> None:
    for step in (1, 2):
        found = {row["name"]: row["value"] for row in columns(run, "metrics", step, ("name", "value"))}
        print(f"\nstep {step}: gradient {found['gradient_norm']}, sampler {found['sampler_difference_max']}")
        assert found["trained_tokens"] > 0 and found["gradient_norm"] > 0  # type: ignore[operator]
        assert found["sampler_difference_max"] < 1e-2, "weights were handed over"  # type: ignore[operator]
    first, second = (load_file(run / "checkpoints" / f"step-00000{n}" / "model.safetensors") for n in (1, 2))
    assert any(bool((second[name] != first[name]).any()) for name in first)


def test_the_columns_of_table_9_add_up_to_the_step(run: Path) -> None:
    for step in (1, 2):
        found = {row["name"]: row["value"] for row in columns(run, "timings", step, ("name", "value"))}
        parts = {name: found[f"time/{name}"] for name in TABLE_9}
        print(f"\nstep {step}: {found['time/step']:.1f} s, {parts}")
        assert sum(parts.values()) == pytest.approx(found["time/step"], rel=1e-6)  # type: ignore[arg-type]
        assert parts["teacher"] > 0 and parts["actor"] > 0  # type: ignore[operator]
