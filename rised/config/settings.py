"""The base class of all settings and the two classes of keys.

A *strict* key shapes the result (learning rate, task panel, vocabulary) and may not change in a resumed run.
An *operational* key (worker count, partition, progress) may. Every field says which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Frozen, and unknown keys fail."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def strict(default: Any = ..., *, description: str, **constraints: Any) -> Any:
    """A field that may not change in a resumed run."""
    return Field(default, description=description, json_schema_extra={"resume": "strict"}, **constraints)


def strict_later(default: Any, *, description: str) -> Any:
    """A strict field that was added when runs were there already.

    At its default it is no part of the settings' hash, so that those runs go on under the hash that they began with.
    """
    return Field(default, description=description, json_schema_extra={"resume": "strict", "later": True})


def operational(default: Any = ..., *, description: str, **constraints: Any) -> Any:
    """A field that may change in a resumed run without changing its result."""
    return Field(default, description=description, json_schema_extra={"resume": "operational"}, **constraints)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Marks a field (``Annotated[Settings, Chosen(...)]``) whose type follows from what the document says.

    ``choose`` takes the field's mapping as plain values and returns the concrete annotation, so that scalars are read
    by the right types and a misspelt key is answered with the nearest valid one. It may raise ValueError.
    """

    choose: Callable[[Mapping[str, Any]], Any]
