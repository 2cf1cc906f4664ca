"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of real data files and cases that are not part of the repository; skips where it is absent."""
    candidates = [os.environ.get("RISED_SHARED"), str(REPOSITORY.parent / "shared")]
    for candidate in candidates:
        if candidate and Path(candidate).is_dir():
            return Path(candidate)
    pytest.skip("real data files not found: set RISED_SHARED to their folder")
