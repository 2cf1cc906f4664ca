"""The GPU's script in a tiny shape on a CPU: every part that can run here does, and leaves its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_smoke
from benchmarks.random_model import model_config
from benchmarks.results import read
from benchmarks.smoke_run import SIZES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run the script itself")
    out = tmp_path_factory.mktemp("smoke")
    command = [sys.executable, "-m", "benchmarks.gpu_smoke", "--shape", "tiny", "--out", str(out)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "gpu_smoke.json").read_text())
    return document


def test_every_part_runs_or_says_why_not(found: dict[str, Any]) -> None:
    parts = {name: part["status"] for name, part in found["parts"].items()}
    optional = {"deepspeed": "deepspeed", "vllm": "vllm", "vllm hand-over": "vllm"}
    expected = dict.fromkeys(("rollout", "agreement", "hand-over", "padded", "packed"), "ok")
    expected |= {part: "ok" if find_spec(package) else "skipped" for part, package in optional.items()}
    assert parts == expected | dict.fromkeys(("vllm nccl", "vllm nccl hand-over"), "skipped")
    assert all(part.get("reason") for part in found["parts"].values() if part["status"] == "skipped")


def test_the_learner_scores_the_engines_tokens_as_the_engine_did(found: dict[str, Any]) -> None:
    agreement = found["parts"]["agreement"]
    assert agreement["tokens"] > 50
    assert agreement["mean_difference_nats"] < 0.02, "bfloat16 against float32 weights"


def test_the_measurements_stand_in_a_table(folder: Path) -> None:
    rows = read("gpu_smoke", folder)
    assert {"padded", "packed"} <= {row.arm for row in rows if row.case == "update"}
    assert all(row.value and row.value > 0 for row in rows)


def test_a_part_that_breaks_is_recorded_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_smoke.TransformersEngine, "load_weights", lambda *_: 1 / 0)
    monkeypatch.setattr(gpu_smoke, "find_spec", lambda name: None)  # DeepSpeed would leave its process group here
    with pytest.raises(SystemExit, match="failed: rollout, hand-over"):
        gpu_smoke.main(["--shape", "tiny", "--out", str(tmp_path), "--vllm-python", "nowhere"])
    parts = json.loads((tmp_path / "gpu_smoke.json").read_text())["parts"]
    assert "ZeroDivisionError" in parts["rollout"]["reason"]
    assert parts["packed"]["status"] == "ok"
    assert "no interpreter nowhere" in parts["vllm"]["reason"] and parts["vllm"]["status"] == "skipped"


def test_the_papers_model_has_the_shape_of_its_file() -> None:
    shape = gpu_smoke.shape_named("qwen25_3b")
    config = model_config(shape)
    assert (config.hidden_size, config.num_hidden_layers, config.num_key_value_heads) == (2048, 36, 2)
    assert 3.0e9 < shape.parameters < 3.2e9


def test_a_device_that_does_not_hold_the_whole_model_gets_fewer_layers_and_the_run_says_so() -> None:
    whole, size = gpu_smoke.shape_named("qwen25_3b"), SIZES["whole"]
    assert gpu_smoke.fitted(whole, size, 150e9) == (whole, [])
    chosen, remarks = gpu_smoke.fitted(whole, size, 79e9)
    assert 20 < chosen.layers < 36 and gpu_smoke.needed_bytes(chosen, size) <= 0.9 * 79e9
    assert remarks == [f"{chosen.layers} of the model's 36 layers: 79 GB are free"]
    with pytest.raises(ValueError, match="too little for one layer"):
        gpu_smoke.fitted(whole, size, 1e9)
