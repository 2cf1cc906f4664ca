"""Finds the environments: importing their packages fills the registry.

Each environment is a package under ``rised/environments`` that registers itself when imported. An environment whose
optional dependencies are missing does not hide the others; asking for it by name says what is missing.
"""

from __future__ import annotations

import importlib
import pkgutil

import rised.environments as rooms
from rised.environments.base import ENVIRONMENTS, EnvironmentFault, EnvironmentSpec

_failures: dict[str, ImportError] = {}
"""Packages that could not be imported, with the reason."""


def discover() -> dict[str, EnvironmentSpec]:
    """Import every environment package and return the registry, sorted by name."""
    for module in pkgutil.iter_modules(rooms.__path__):
        if module.ispkg:
            _load(module.name)
    return dict(sorted(ENVIRONMENTS.items()))


def get(name: str) -> EnvironmentSpec:
    """The environment called ``name``; raises :class:`EnvironmentFault` naming the known ones otherwise."""
    if name not in ENVIRONMENTS and any(m.name == name and m.ispkg for m in pkgutil.iter_modules(rooms.__path__)):
        _load(name)
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    known = ", ".join(discover()) or "none"
    if name in _failures:
        raise EnvironmentFault(
            f"environment {name!r} needs a package that is not installed ({_failures[name]}); "
            f"install the project's environment extras. Usable now: {known}"
        ) from _failures[name]
    raise EnvironmentFault(f"unknown environment {name!r}; known: {known}")


def _load(package: str) -> None:
    try:
        importlib.import_module(f"{rooms.__name__}.{package}")
        _failures.pop(package, None)
    except ImportError as error:
        _failures[package] = error
