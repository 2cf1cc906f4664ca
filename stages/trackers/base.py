"""What every tracker does, and how one is found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rised.config import ConfigError

PACKAGE = "stages.trackers"


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as a tracker shows it. ``settings``: its configuration, flat, by dotted key."""

    experiment: str
    name: str
    settings: Mapping[str, Any]


class Tracker(ABC):
    """Takes a run's metrics step by step, in ascending order. ``folder``: where it writes."""

    @abstractmethod
    def __init__(self, run: TrackedRun, folder: Path) -> None: ...

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """All metrics of one step."""

    @abstractmethod
    def close(self) -> None:
        """Everything is on disk when it returns."""


def tracker_names() -> list[str]:
    """Names of the trackers that are built in."""
    package = importlib.import_module(PACKAGE)
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name != "base")


def tracker_class(name: str) -> type[Tracker]:
    """The class ``TRACKER`` of the file of that name. ConfigError for an unknown one."""
    if name not in tracker_names():
        raise ConfigError(f"there is no tracker {name!r}: choose one of {', '.join(tracker_names())}")
    found: type[Tracker] = importlib.import_module(f"{PACKAGE}.{name}").TRACKER
    return found


def need(module: str) -> Any:
    """The tracker's package; ConfigError with what to install if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{module} cannot be imported ({error}): pip install 'rised[trackers]'") from error
