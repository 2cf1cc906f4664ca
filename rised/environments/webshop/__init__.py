"""WebShop: find and buy the product that an instruction describes (arXiv 2207.01206), rules and reward in full."""

from __future__ import annotations

from rised.environments.base import EnvironmentSpec, register
from rised.environments.webshop.environment import WebshopEnvironment
from rised.environments.webshop.settings import WebshopSettings
from rised.environments.webshop.store import restore_shop
from rised.environments.webshop.tasks import NAME, prepare, traits

__all__ = ["WebshopEnvironment", "WebshopSettings", "prepare"]

SPEC = register(
    EnvironmentSpec(
        name=NAME,
        settings_type=WebshopSettings,
        make=WebshopEnvironment,
        prepare=prepare,
        max_turns=20,
        traits=traits,
        restore=restore_shop,
    )
)
