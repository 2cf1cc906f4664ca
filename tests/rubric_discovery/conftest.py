"""Discoveries to try: the shipped fixture of hand-written replies, in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from discovery_work import MakeWork

from rised.config.loader import load
from rubric_discovery.settings import DiscoverySettings
from rubric_discovery.work import Work


@pytest.fixture(autouse=True)
def _at_the_root(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)


@pytest.fixture
def make_work(tmp_path: Path) -> MakeWork:
    """``make_work(*overrides, folder="discovery", config="recorded")``."""

    def make(*overrides: str, folder: str = "discovery", config: str = "recorded") -> Work:
        settings = load(DiscoverySettings, [Path("configs/discovery") / f"{config}.yaml"], overrides)
        return Work(settings, tmp_path / folder)

    return make
