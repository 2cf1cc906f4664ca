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
from benchmarks.results import read


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
    optional = {name: "ok" if find_spec(name) else "skipped" for name in ("vllm", "deepspeed")}
    expected = dict.fromkeys(("rollout", "agreement", "hand-over", "padded", "packed"), "ok") | optional
    assert parts == expected
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
        gpu_smoke.main(["--shape", "tiny", "--out", str(tmp_path)])
    parts = json.loads((tmp_path / "gpu_smoke.json").read_text())["parts"]
    assert "ZeroDivisionError" in parts["rollout"]["reason"]
    assert parts["packed"]["status"] == "ok"


def test_the_papers_model_has_the_shape_of_its_file() -> None:
    shape = gpu_smoke.shape_named("qwen25_3b")
    config = gpu_smoke.model_config(shape)
    assert (config.hidden_size, config.num_hidden_layers, config.num_key_value_heads) == (2048, 36, 2)
    assert 3.0e9 < shape.parameters < 3.2e9
