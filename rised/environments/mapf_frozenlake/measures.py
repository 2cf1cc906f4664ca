"""The published measures of an episode: valid, optimal, wait subsets, and the breakdown of failures by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rised.environments.mapf_frozenlake.environment import FAILURES, NOT_FINISHED


def measures(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What one episode adds to the rates; each is a mean over the episodes that have the measure.

    ``infos``: of its turns, in order; a turn whose reply was cut and not carried out has none of ours. ``valid``,
    ``optimal`` and ``failure_<kind>`` are 0 or 1 and stand also by size (``valid/size_4``), the first two by number of
    agents (``valid/agents_3``) and for wait instances alone (``valid/wait``). ``cost_ratio`` is a valid plan's cost
    over the optimum's.
    """
    known = [info for info in infos if "failure" in info]
    last = known[-1] if known else {}
    failure = last.get("failure", NOT_FINISHED)
    cost, optimum = last.get("cost"), last.get("optimal_cost")
    valid, optimal = failure is None, failure is None and cost == optimum
    found = {"valid": float(valid), "optimal": float(optimal)}
    kinds = {f"failure_{kind}": float(kind == failure) for kind in FAILURES}
    by_size = {f"{name}/size_{last['size']}": value for name, value in (found | kinds).items()} if known else {}
    subsets = [f"agents_{last['agents']}", *(["wait"] if last["wait"] else [])] if known else []
    by_subset = {f"{name}/{subset}": value for subset in subsets for name, value in found.items()}
    ratio = {"cost_ratio": cost / optimum} if valid and cost and optimum else {}
    return found | kinds | ratio | by_subset | by_size
