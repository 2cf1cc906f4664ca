"""The learner on DeepSpeed: loss, gradient and weights are the plain learner's, whatever is sharded over whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install 'rised[deepspeed]'")

import torch
from deepspeed_job import open_learner, results, run_jobs
from learner_examples import measures, sequences, terms, tiny_model
from pydantic import ValidationError
from torch import distributed

from rised.learner.errors import LearnerError
from rised.learner.settings import DeepSpeedLearnerSettings

ZERO: dict[str, Any] = {"type": "deepspeed"}
PAIR = {
    "zero0_padded": ZERO | {"zero_stage": 0, "gradient_share_every": 1},
    "zero0_packed": ZERO | {"zero_stage": 0, "layout": "packed"},
    "zero2_packed": ZERO | {"zero_stage": 2, "layout": "packed", "gradient_share_every": 1, "micro_batch_tokens": 96},
    "zero3_padded": ZERO | {"zero_stage": 3, "reference": "sharded"},
    "zero3_packed": ZERO | {"zero_stage": 3, "layout": "packed", "activation_checkpointing": True},
    "zero3_idle": ZERO | {"zero_stage": 3, "count": 1},
}
"""Of two ranks; in the last one the second rank has no sequence."""
SAVED = ("zero2_packed", "zero3_padded")
TRIO = {
    "zero3_from_zero2": ZERO | {"zero_stage": 3, "seeds": [3]},
    "zero1_from_zero3": ZERO | {"zero_stage": 1, "seeds": [3]},
}
"""Of three ranks, which go on from a state of the two."""


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Learners of one rank open this process's default group, which tests that fork would inherit; ZeRO 3 puts a linear
    layer of its own into torch.
    """
    linear = torch.nn.functional.linear
    yield
    torch.nn.functional.linear = linear
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture(scope="module")
def plain() -> dict[str, np.ndarray]:
    """The plain learner's updates, in one process."""
    torch.set_num_threads(1)
    return results({"gradient_share_every": 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> dict[str, list[dict[str, np.ndarray]]]:
    """Case -> each rank's results, of all jobs."""
    pair = {name: case | ({"save": str(folder / name)} if name in SAVED else {}) for name, case in PAIR.items()}
    trio = {name: case | {"load": str(folder / saved)} for (name, case), saved in zip(TRIO.items(), SAVED, strict=True)}
    return run_jobs([(2, pair), (3, trio)], folder)


def assert_the_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], numbers: tuple[int, ...]) -> None:
    """Losses, gradients and weights to 1e-5 relative."""
    for number in numbers:
        gradient = expected[f"gradient/{number}"]
        assert np.linalg.norm(found[f"gradient/{number}"] - gradient) <= 1e-5 * np.linalg.norm(gradient)
        for name in ("loss/total", "loss/rl", "loss/reference_kl", "loss/distill", "gradient_norm"):
            assert found[f"{name}/{number}"] == pytest.approx(expected[f"{name}/{number}"], rel=1e-5, abs=1e-7), name
    assert np.linalg.norm(found["weights"] - expected["weights"]) <= 1e-5 * np.linalg.norm(expected["weights"])


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_rank_makes_the_plain_learners_updates_at_every_stage(
    stage: int, layout: str, plain: dict[str, np.ndarray]
) -> None:
    found = results(ZERO | {"zero_stage": stage, "layout": layout, "micro_batch_tokens": 64 if stage % 2 else 200})
    assert_the_same(found, plain, (0, 1))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_buffer_of_reductions_is_of_the_models_size_and_a_smaller_one_changes_no_update(
    stage: int, plain: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = ZERO | {"zero_stage": stage}
    assert open_learner(case).optimizer.reduce_bucket_size == tiny_model().num_parameters()
    monkeypatch.setattr("rised.learner.footprint.REDUCTION_BUCKET", 500)
    assert open_learner(case).optimizer.reduce_bucket_size == 500 < max(p.numel() for p in tiny_model().parameters())
    assert_the_same(results(case), plain, (0, 1))


@pytest.mark.parametrize("name", [name for name, case in PAIR.items() if "count" not in case])
def test_two_ranks_make_the_plain_learners_updates(
    name: str, jobs: dict[str, list[dict[str, np.ndarray]]], plain: dict[str, np.ndarray]
) -> None:
    for found in jobs[name]:
        assert_the_same(found, plain, (0, 1))


def test_a_rank_without_sequences_joins_every_pass(jobs: dict[str, list[dict[str, np.ndarray]]]) -> None:
    expected = results({"count": 1})
    for found in jobs["zero3_idle"]:
        assert_the_same(found, expected, (0, 1))


@pytest.mark.parametrize("name", ["zero0_padded", "zero2_packed"])
def test_shares_of_the_gradient_are_measured_and_disturb_no_update(
    name: str, jobs: dict[str, list[dict[str, np.ndarray]]], plain: dict[str, np.ndarray]
) -> None:
    shares = [key for key in plain if key.startswith("gradient_share/")]
    assert len(shares) == 6
    for key in shares:
        assert jobs[name][0][key] == pytest.approx(plain[key], rel=1e-4)


@pytest.mark.parametrize("name", list(TRIO))
def test_three_ranks_at_another_stage_go_on_from_the_state_of_two(
    name: str, jobs: dict[str, list[dict[str, np.ndarray]]]
) -> None:
    expected = results({"seeds": (1, 2, 3)})
    third = {key.replace("/2", "/0"): value for key, value in expected.items() if key.endswith("/2")}
    for found in jobs[name]:
        assert_the_same(found, third | {"weights": expected["weights"]}, (0,))


def test_the_plain_learner_goes_on_from_a_sharded_state_and_back(folder: Path, jobs: object, tmp_path: Path) -> None:
    expected = results({"seeds": (1, 2, 3)})
    found = results({"load": str(folder / "zero3_padded"), "seeds": [3]})
    assert np.linalg.norm(found["weights"] - expected["weights"]) <= 1e-5 * np.linalg.norm(expected["weights"])
    results({"save": str(tmp_path / "plain")})
    found = results(ZERO | {"zero_stage": 3, "load": str(tmp_path / "plain"), "seeds": [3]})
    assert np.linalg.norm(found["weights"] - expected["weights"]) <= 1e-5 * np.linalg.norm(expected["weights"])


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_save_load_save_gives_the_same_bytes_also_before_the_first_update(stage: int, tmp_path: Path) -> None:
    for seeds in ([], [1, 2]):
        case = ZERO | {"zero_stage": stage}
        one, other = tmp_path / f"one-{len(seeds)}", tmp_path / f"other-{len(seeds)}"
        results(case | {"seeds": seeds, "save": str(one)})
        results(case | {"seeds": [], "load": str(one), "save": str(other)})
        for file in ("policy.safetensors", "optimizer.safetensors", "learner.json"):
            assert (one / file).read_bytes() == (other / file).read_bytes(), file


def test_a_step_that_is_done_again_from_the_state_gives_the_same_bytes(tmp_path: Path) -> None:
    case = ZERO | {"zero_stage": 3, "layout": "packed"}
    results(case | {"seeds": [1], "save": str(tmp_path / "middle")})
    for name in ("first", "second"):
        results(case | {"seeds": [2], "load": str(tmp_path / "middle"), "save": str(tmp_path / name)})
    for file in ("policy.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_gradient_that_is_not_finite_changes_nothing(stage: int, tmp_path: Path) -> None:
    learner = open_learner(ZERO | {"zero_stage": stage})
    learner.update(sequences(tiny_model()), terms())
    learner.save_state(tmp_path / "before")
    broken = dataclasses.replace(terms()[0], token_loss=lambda streams: streams.current * float("inf"))
    with pytest.raises(LearnerError, match="gradient is not finite"):
        learner.update(sequences(tiny_model()), [broken])
    learner.save_state(tmp_path / "after")
    for file in ("policy.safetensors", "optimizer.safetensors", "learner.json"):
        assert (tmp_path / "before" / file).read_bytes() == (tmp_path / "after" / file).read_bytes()


@pytest.mark.parametrize("stage", [1, 3])
def test_bfloat16_weights_train_with_float32_ones_behind_them(stage: int, plain: dict[str, np.ndarray]) -> None:
    found = results(ZERO | {"zero_stage": stage, "weights": "bfloat16", "layout": "packed"})
    assert found["gradient_norm/0"] == pytest.approx(plain["gradient_norm/0"], rel=0.1)
    assert 0 < np.linalg.norm(found["weights"] - plain["weights"]) < 0.02 * np.linalg.norm(plain["weights"])


def test_an_empty_update_changes_nothing() -> None:
    learner = open_learner(ZERO | {"zero_stage": 3})
    report = learner.update([], terms())
    assert report.empty and measures(report)["loss/total"] == 0.0
    played = tiny_model(4)
    learner.weights_into(played)
    for one, other in zip(played.parameters(), tiny_model().parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero_stage": 0, "weights": "bfloat16"}, "zero_stage >= 1"),
        ({"zero_stage": 0, "offload_optimizer": True}, "zero_stage >= 1"),
        ({"zero_stage": 3, "gradient_share_every": 10}, "gradient_share_every: 0"),
    ],
)
def test_what_a_stage_cannot_do_is_refused_with_the_mend(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DeepSpeedLearnerSettings(type="deepspeed", **settings)
