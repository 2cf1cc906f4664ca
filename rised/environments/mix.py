"""The environment mix of an experiment: which environments, with which settings, and how large their panels are.

The settings of an environment are typed by the environment itself, so a new one brings its own keys along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, create_model

from rised.config import Chosen, Settings, strict
from rised.environments.base import EnvironmentFault
from rised.environments.discovery import get


class EnvironmentConfig(Settings):
    """One environment of the mix: its own settings and the sizes of its task panels."""

    settings: SerializeAsAny[Settings] = strict(description="The environment's own settings.")
    train_tasks: int = strict(gt=0, description="Tasks of the training panel.")
    validation_tasks: int = strict(gt=0, description="Held-out tasks of the validation panel.")


def _environment_annotations(entries: Mapping[str, Any]) -> Any:
    """A model with one field per named environment, so that its settings are read by its own types."""
    fields: dict[str, Any] = {}
    for name in entries:
        try:
            settings_type = get(name).settings_type
        except EnvironmentFault as error:
            raise ValueError(str(error)) from error
        own = strict(settings_type(), description="The environment's own settings.")
        entry = create_model(f"{name}_entry", __base__=EnvironmentConfig, settings=(settings_type, own))
        fields[name] = (entry, strict(description="One environment of the mix."))
    return create_model("Environments", __base__=Settings, **fields)


def _typed_environments(value: Any) -> Any:
    """Validate each environment's ``settings`` with the type that the environment itself declares."""
    if not isinstance(value, Mapping):
        return value
    typed = {}
    for name, entry in value.items():
        if isinstance(entry, Mapping) and isinstance(entry.get("settings", {}), Mapping):
            try:
                entry = {**entry, "settings": get(name).settings_type(**entry.get("settings", {}))}
            except EnvironmentFault as error:
                raise ValueError(str(error)) from error
        typed[name] = entry
    return typed


EnvironmentMix = Annotated[
    dict[str, EnvironmentConfig], BeforeValidator(_typed_environments), Chosen(_environment_annotations)
]


class PanelSettings(Settings):
    """Which tasks exist."""

    seed: int = strict(0, description="Seed from which generated tasks are drawn.")
