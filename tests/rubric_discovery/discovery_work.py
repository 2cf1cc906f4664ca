"""Discoveries performed as their programs do: steps in order, the record of the last."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from rubric_discovery.work import Work, perform

STEPS = ("sample", "propose", "normalise", "merge", "screen", "group", "freeze")
MakeWork = Callable[..., Work]


def run_steps(work: Work, *names: str) -> dict[str, Any]:
    """Perform steps in order (default: all); the record of the last."""
    record: dict[str, Any] = {}
    for name in names or STEPS:
        record = perform(import_module(f"rubric_discovery.{name}").STEP, work)
    return record
