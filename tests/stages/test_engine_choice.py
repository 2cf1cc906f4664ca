"""Which engine generates is a strict choice; runs from before there was one go on as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stage_commands import assert_refused, in_process

from rised.config import ConfigError
from rised.config.loader import load_text
from rised.config.resolved import changed_strict_keys, dump, settings_hash, strict_values
from rised.experiment import RunConfig
from stages.setup import load_run

pytestmark = pytest.mark.usefixtures("at_the_root")

QUICKSTART = Path("configs/experiments/quickstart.yaml")


def run(*overrides: str) -> RunConfig:
    return load_run(QUICKSTART, "rised", 0, overrides)


def test_a_run_from_before_engines_could_be_chosen_goes_on_under_its_hash() -> None:
    now = run()
    lines = dump(now).splitlines()
    place = lines.index("engine:")
    saved = "\n".join(lines[:place] + lines[place + 2 :])
    assert lines[place + 1].strip() == "type: transformers" and "engine:" not in saved
    before = load_text(RunConfig, saved)
    assert before == now and changed_strict_keys(before, now) == []
    assert not any(key.startswith("engine.") for key in strict_values(now))


def test_another_engine_is_another_run() -> None:
    changed = changed_strict_keys(run(), run("engine.type=vllm"))
    assert ("engine.type", '"transformers"', '"vllm"') in changed
    assert settings_hash(run()) != settings_hash(run("engine.type=vllm"))
    assert settings_hash(run("engine.type=vllm")) == settings_hash(run("engine.type=vllm", "engine.replicas=4"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["engine.type=vlm"], "type should be 'transformers' or 'vllm'"),
        (["engine.replicas=2"], "engine.replicas"),
        (["engine={type: vllm, max_model_len: 64}"], "max_model_len is 64.*max_episode_tokens"),
        (["engine.type=vllm", "rollout.temperature=2.5"], "rollout.temperature is 2.5.*vllm draws at"),
        (["engine.type=vllm", "validation.temperature=0.001"], "validation.temperature is 0.001"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_when_the_configuration_is_read(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(*overrides)


def test_greedy_validation_is_drawn_by_either_engine() -> None:
    assert run("engine.type=vllm", "validation.temperature=0").engine.type == "vllm"


def test_without_vllm_a_stage_says_so_before_it_loads_a_policy(
    tiny_experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = in_process(monkeypatch, capsys)
    arguments = ["--config", tiny_experiment.config, "--tasks", tiny_experiment.tasks, "--out", tmp_path / "out"]
    for interpreter in ("nowhere", "/bin/false"):
        engine = f"engine={{type: vllm, python: {interpreter}}}"
        outcome = command("evaluate", *arguments, "--set", engine, "--set", "model.path=nowhere")
        assert_refused(outcome, "engine.python" if interpreter == "nowhere" else "has no vLLM", "vllm")
