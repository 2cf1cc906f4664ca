"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings
from small_experiments import SmallExperiment, make_experiment

REPOSITORY = Path(__file__).resolve().parent.parent
settings.register_profile("any_machine", deadline=None)  # Hypothesis fails an example that takes 200 ms otherwise
settings.load_profile("any_machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The rooms whose tests wait longest come first, so that no worker is left with one of them at the end."""
    first = (REPOSITORY / "tests" / "slurm", REPOSITORY / "tests" / "stages")
    items.sort(key=lambda item: next((n for n, room in enumerate(first) if room in item.path.parents), len(first)))


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture
def at_the_root(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in configurations are relative to the root, wherever the tests were started."""
    monkeypatch.chdir(repository)


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """Folder of failures met elsewhere, rebuilt with inputs of our own: one subfolder and `case.md` per case."""
    return REPOSITORY / "tests" / "cases"


@pytest.fixture(scope="session")
def excerpts_dir() -> Path:
    """A few real records of the benchmarks, where their licences allow that: see its NOTICE.md."""
    return REPOSITORY / "tests" / "excerpts"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of whole real data files that are not part of the repository; skips where it is absent."""
    candidates = [os.environ.get("RISED_SHARED"), str(REPOSITORY.parent / "shared")]
    for candidate in candidates:
        if candidate and Path(candidate).is_dir():
            return Path(candidate)
    pytest.skip("real data files not found: set RISED_SHARED to their folder")


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy directory whose weights are random and whose tokenizer knows DBBench's words."""
    import torch

    from rised.environments.discovery import get
    from rised.models.nano.architecture import build_nano
    from rised.models.nano.settings import NanoShape
    from rised.models.nano.tokenizer import END, PAD, save_tokenizer, spaced_variants, train_tokenizer
    from rised.rollouts.demonstrations import play_expert

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("policy")
    spec = get("dbbench")
    settings = spec.settings_type(prompt_style="compact")
    environment = spec.make(settings)
    rollouts = [play_expert(environment, task, 0, 0.0, 8) for task in spec.prepare(settings, "train", 30, 5)]
    texts = [text for r in rollouts for turn in r.turns for text in (turn.observation, turn.action_raw)]
    tokenizer = train_tokenizer(texts, 600)
    save_tokenizer(tokenizer, folder)
    shape = NanoShape(hidden_size=32, layers=2, heads=2, feed_forward_size=64, vocabulary_size=600)
    pad, end = (int(tokenizer.convert_tokens_to_ids(token)) for token in (PAD, END))
    build_nano(shape, len(tokenizer), pad, end, spaced_variants(tokenizer), 0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_experiment(tmp_path_factory: pytest.TempPathFactory, tiny_policy: Path, repository: Path) -> SmallExperiment:
    """The experiment with its tasks prepared and its warm start evaluated; its weights hardly ever change."""
    return make_experiment(tmp_path_factory.mktemp("tiny"), repository, tiny_policy, "tiny")


@pytest.fixture(scope="session")
def learning_experiment(
    tmp_path_factory: pytest.TempPathFactory, tiny_policy: Path, repository: Path
) -> SmallExperiment:
    """The same with a gradient: no update of RISED leaves the weights as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        return make_experiment(tmp_path_factory.mktemp("learning"), repository, tiny_policy, "learning")
