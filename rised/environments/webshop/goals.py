"""Shopping goals: what a customer wants, in the original's order.

Goals are made in product order, then shuffled with the original's seed, so that goal index i means the same task as
in WebShop and AgentBench. Price limits come from a seed of their own: the original draws them before it seeds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rised.environments.base import EnvironmentFault
from rised.environments.webshop.catalogue import Catalogue, Product

SHUFFLE_SEED = 233
PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))
NO_LIMIT = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal. ``options`` are the wanted values; ``nouns`` those of the wanted product's title; limit in dollars."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float
    query: str
    product_category: str
    nouns: tuple[str, ...] = ()

    def to_payload(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Goal:
        """The goal of a task's payload; EnvironmentFault names the fields that are missing or unknown."""
        fields = set(cls.__dataclass_fields__)
        if set(payload) != fields:
            missing, unknown = sorted(fields - set(payload)), sorted(set(payload) - fields)
            raise EnvironmentFault(
                f"webshop task: goal lacks {missing or 'nothing'} and has unknown fields {unknown or 'none'}; "
                "prepare the tasks again"
            )
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in payload.items()
        }
        return cls(**values)


def _price_limit(price: float, rng: random.Random) -> tuple[float, str]:
    """Limit in dollars and its wording: the larger of two of the next four tens above the price."""
    above = [step for step in PRICE_STEPS if step > price][:4]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(rng.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _human_goals(product: Product, price: float, rng: random.Random) -> Iterator[Goal]:
    """One goal per human instruction; those without attributes are left out, as in the original."""
    for entry in product.human_instructions:
        if not entry["instruction_attributes"]:
            continue
        limit, limit_text = _price_limit(price, rng)
        yield Goal(
            asin=product.asin,
            instruction=entry["instruction"].strip(".") + limit_text,
            attributes=tuple(entry["instruction_attributes"]),
            options=tuple(entry["instruction_options"]),
            price_upper=limit,
            query=product.query,
            product_category=product.product_category,
        )


def _synthetic_goals(product: Product, price: float, rng: random.Random) -> Iterator[Goal]:
    """One goal per combination of option values; all share the product's limit."""
    if product.instruction is None:
        return
    limit, limit_text = _price_limit(price, rng)
    groups = sorted(product.options)
    for values in itertools.product(*(product.options[group] for group in groups)):
        wanted = ", and ".join(f"{group}: {value}" for group, value in zip(groups, values, strict=True))
        yield Goal(
            asin=product.asin,
            instruction=product.instruction + (f" with {wanted}" if wanted else "") + limit_text,
            attributes=product.instruction_attributes,
            options=values,
            price_upper=limit,
            query=product.query,
            product_category=product.product_category,
        )


def build_goals(catalogue: Catalogue, kind: str, price_seed: int) -> list[Goal]:
    """All goals of ``kind`` ("human" or "synthetic") in the original's shuffled order; nouns are not yet filled in."""
    make = _human_goals if kind == "human" else _synthetic_goals
    rng = random.Random(price_seed)
    goals = [goal for product in catalogue.products for goal in make(product, catalogue.prices[product.asin], rng)]
    random.Random(SHUFFLE_SEED).shuffle(goals)
    return goals
