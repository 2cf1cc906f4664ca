"""What each selector does, in a sentence beside the groups that it chose; the rules themselves are in the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.panels import flat

RULES: dict[str, str] = {
    "all": "trains on every candidate group",
    "random": "takes the groups as they were drawn, whatever happened in them",
    "global_variance": "takes the groups whose rewards vary most, whatever their environment; score: reward variance",
    "round_robin_variance": "lets the environments take turns and takes the group whose rewards vary most; "
    "score: reward variance",
    "profile": "lets the environments take turns and takes the group with the highest score = similarity − "
    "{redundancy_weight} × redundancy; similarity: cosine of the group's behaviour profile with the mean profile of "
    "the candidates; redundancy: {redundancy} cosine with the groups that are already selected",
    "herding": "lets the environments take turns and takes the group that keeps the mean profile of the selection "
    "closest to that of the candidates; score: minus that distance",
    "facility_location": "lets the environments take turns and takes the group that covers most of the candidates not "
    "yet resembled; score: that gain",
}
"""Setting ``method.selector.type`` -> its rule; braces hold further settings of the selector."""


def rule(config: Mapping[str, Any]) -> str:
    """The sentence for a run's configuration; it names the type where the type is unknown here, "" without one."""
    settings = {key.removeprefix("method.selector."): value for key, value in flat(config).items()}
    kind = settings.get("type")
    if not isinstance(kind, str):
        return ""
    words = RULES.get(kind, "")
    for name in ("redundancy_weight", "redundancy"):
        words = words.replace(f"{{{name}}}", str(settings.get(name, name)))
    return f"Selector “{kind}”{f': {words}' if words else ''}."
