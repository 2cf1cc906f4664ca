"""Typed configuration: one YAML loader, overlays, strict and operational keys, hashes.

Rooms define their own settings beside their code by subclassing :class:`Settings`; this room holds only what all share.
"""

from rised.config.errors import ConfigError
from rised.config.settings import DISTINCT, Chosen, Settings, operational, strict

__all__ = ["DISTINCT", "Chosen", "ConfigError", "Settings", "operational", "strict"]
