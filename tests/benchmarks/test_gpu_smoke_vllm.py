"""The GPU's script with a real vLLM on a CPU, by its command line: `make test-vllm`.

A server in a tiny shape plays, takes changed weights, and plays on with those alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.results import read

pytestmark = pytest.mark.vllm

ENVIRONMENT = ".venv-vllm"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    if not (repository / ENVIRONMENT / ".ready").is_file():
        pytest.skip("vLLM is not set up here: make vllm")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run the script itself")
    out = tmp_path_factory.mktemp("smoke")
    interpreter = str(repository / ENVIRONMENT / "bin" / "python")
    command = [sys.executable, "-m", "benchmarks.gpu_smoke", "--shape", "tiny", "--out", str(out)]
    done = subprocess.run(
        [*command, "--vllm-python", interpreter], cwd=repository, capture_output=True, text=True, timeout=1800
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def parts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "gpu_smoke.json").read_text())["parts"]
    return found


def test_a_real_server_plays_the_two_turns_and_the_learner_agrees(parts: dict[str, Any]) -> None:
    played, own = parts["vllm"], parts["agreement"]
    assert played["status"] == "ok" and played["server"]["vllm"]
    assert played["weight_versions"] == [0]
    assert played["tokens"] > 50 and played["mean_difference_nats"] < 0.02, "bfloat16 against float32 weights"
    assert played["mean_difference_nats"] < 3 * own["mean_difference_nats"] + 1e-3


def test_after_a_hand_over_the_samples_are_of_the_new_weights_and_their_version(parts: dict[str, Any]) -> None:
    after = parts["vllm hand-over"]
    assert after["status"] == "ok" and after["weight_versions"] == [1]
    assert after["mean_difference_nats"] < 0.02
    assert after["mean_difference_to_old_weights_nats"] > 10 * after["mean_difference_nats"]
    assert after["hand_over_s"] > 0


def test_what_takes_two_gpus_is_skipped_with_its_reason(parts: dict[str, Any]) -> None:
    assert parts["vllm nccl"]["status"] == parts["vllm nccl hand-over"]["status"] == "skipped"
    assert "two" in parts["vllm nccl"]["reason"]


def test_its_measurements_stand_in_the_table_and_the_servers_log_beside_it(folder: Path) -> None:
    rows = {(row.case, row.arm, row.unit): row for row in read("gpu_smoke", folder)}
    assert rows["rollout", "vLLM", "tokens/s (wall)"].value
    assert rows["hand-over", "to vLLM, files", "s (wall)"].value
    old = rows["agreement", "vLLM, after the hand-over, against the old weights", "nats, mean difference"].value
    new = rows["agreement", "vLLM, after the hand-over", "nats, mean difference"].value
    assert old and new and old > new
    assert list(folder.glob("vllm-*.log"))
