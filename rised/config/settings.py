"""The base class of all settings and the two classes of keys.

A *strict* key shapes the result (learning rate, task panel, vocabulary) and may not change in a resumed run.
An *operational* key (worker count, partition, progress) may. Every field says which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Frozen; unknown keys fail, and so do infinite numbers and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def strict(default: Any = ..., *, description: str, in_hash_at_default: bool = True, **constraints: Any) -> Any:
    """A field that may not change in a resumed run.

    ``in_hash_at_default`` False is for a key whose default is what runs did that know nothing of it: their hash holds.
    """
    extra: dict[str, Any] = {"resume": "strict"} | ({} if in_hash_at_default else {"in_hash_at_default": False})
    return Field(default, description=description, json_schema_extra=extra, **constraints)


def operational(default: Any = ..., *, description: str, **constraints: Any) -> Any:
    """A field that may change in a resumed run without changing its result."""
    return Field(default, description=description, json_schema_extra={"resume": "operational"}, **constraints)


def _refuse_repetition(values: Sequence[Any] | None) -> Sequence[Any] | None:
    for place, value in enumerate(values or ()):
        if values is not None and value in values[:place]:
            raise ValueError(f"{value!r} appears twice; name each entry once")
    return values


DISTINCT = AfterValidator(_refuse_repetition)
"""Marks a list (``Annotated[list[str], DISTINCT]``) in which an entry given twice is a mistake."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Marks a field (``Annotated[Settings, Chosen(...)]``) whose type follows from what the document says.

    ``choose`` takes the field's mapping as plain values and returns the concrete annotation, so that scalars are read
    by the right types and a misspelt key is answered with the nearest valid one. It may raise ValueError.
    """

    choose: Callable[[Mapping[str, Any]], Any]
