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

ABLATIONS: dict[str, str] = {
    "rised_no_selection": "RISED without selection",
    "rised_selection_only": "RISED without distillation",
    "rised_no_steering": "RISED, positive only",
    "rised_all_rubrics": "All rubrics, with selection",
    "rised_no_teacher": "RISED without teacher",
    "rised_teacher_only": "Teacher only",
    "rised_steering_only": "Steering only",
}
"""Arms of Figures 3 and 6 under the paper's words, and the other cells of the 2x2x2 ablation [ours]."""

ORSD: dict[str, str] = {
    "react": "ReAct",
    "reflexion": "Reflexion",
    "reflact": "ReflAct",
    "react_self_guidance": "ReAct + self-guidance",
    "opsd": "OPSD",
    "grpo": "GRPO",
    "grpo_opsd": "GRPO + OPSD",
    "sdar": "SDAR",
    "gigpo": "GiGPO",
    "offline_rubric": "Offline Rubric",
    "orsd_without_alignment": "ORSD without alignment",
    "random_rubric": "Random Rubric",
    "orsd_m4": "ORSD (M = 4)",
    "orsd": "ORSD",
    "orsd_offline_rubric": "ORSD, offline rubric",
    "orsd_random_rubric": "ORSD, random rubric",
    "orsd_alpha_0001": "ORSD, α = 0.001",
    "orsd_alpha_01": "ORSD, α = 0.1",
}
"""Methods of the ORSD paper's tables, and ours that stand for its ablations."""

_KNOWN = {**METHODS, **ABLATIONS, **ORSD}

ENVIRONMENTS: dict[str, str] = {
    "alfworld": "ALFWorld",
    "webshop": "WebShop",
    "dbbench": "DBBench",
    "appworld": "AppWorld",
    "mapf_frozenlake": "MAPF-FrozenLake",
    "overall": "Overall",
}

BASELINE = "grpo_64"
PROPOSED = "rised"


def method_name(method: str) -> str:
    return _KNOWN.get(method, method)


def environment_name(environment: str) -> str:
    return ENVIRONMENTS.get(environment, environment)


def ordered_methods(methods: Iterable[str]) -> list[str]:
    """The paper's methods in its order, then its ablations, then the others by name."""
    return _ordered(methods, _KNOWN)


def ordered_environments(environments: Iterable[str]) -> list[str]:
    return _ordered(environments, ENVIRONMENTS)


def _ordered(names: Iterable[str], known: dict[str, str]) -> list[str]:
    present = set(names)
    return [name for name in known if name in present] + sorted(present - set(known))
