"""How methods and environments are called and ordered in print. Unknown names print as they are."""

from __future__ import annotations

from collections.abc import Iterable

METHODS: dict[str, str] = {
    "grpo_64": "GRPO-64",
    "grpo_128": "GRPO-128",
    "global_variance": "Global Variance",
    "round_robin_variance": "Round-robin Variance",
    "all_rubric_sd": "All-Rubric SD",
    "rised": "RISED",
}
"""The paper's order (Table 2)."""

ENVIRONMENTS: dict[str, str] = {
    "alfworld": "ALFWorld",
    "webshop": "WebShop",
    "dbbench": "DBBench",
    "appworld": "AppWorld",
    "overall": "Overall",
}

BASELINE = "grpo_64"
PROPOSED = "rised"


def method_name(method: str) -> str:
    return METHODS.get(method, method)


def environment_name(environment: str) -> str:
    return ENVIRONMENTS.get(environment, environment)


def ordered_methods(methods: Iterable[str]) -> list[str]:
    """The paper's methods in its order, then the others by name."""
    return _ordered(methods, METHODS)


def ordered_environments(environments: Iterable[str]) -> list[str]:
    return _ordered(environments, ENVIRONMENTS)


def _ordered(names: Iterable[str], known: dict[str, str]) -> list[str]:
    present = set(names)
    return [name for name in known if name in present] + sorted(present - set(known))
