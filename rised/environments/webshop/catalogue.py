"""Products as WebShop's own files describe them (items_shuffle.json, items_ins_v2.json, items_human_ins.json).

The same code loads the user's original files and our generated ones. No product with a usable id is ever dropped:
goals are built in product order and then shuffled, so one missing product would move every task index.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from rised.environments.base import EnvironmentFault
from rised.records.text import load_json

DEFAULT_PRICE = 100.0
"""Price of a product whose price is missing or cannot be read, as in the original."""

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""What the original puts where a product has no entry in the attribute file."""


@dataclass(frozen=True, slots=True)
class Product:
    """One product. ``prices`` in dollars: one value, or two for a range; ``options``: group -> values, lower-cased."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    prices: tuple[float, ...]
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()
    human_instructions: tuple[dict[str, Any], ...] = ()

    @property
    def price_tag(self) -> str:
        """The price as the page shows it: ``$12.5`` or ``$10.0 to $15.0``."""
        return " to ".join(f"${price}" for price in self.prices)

    def option_groups(self) -> dict[str, str]:
        """Option value -> its group; of groups that share a value the last one gets the click, as in the original."""
        return {value: group for group, values in self.options.items() for value in values}


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All products in file order, the price each is sold at, and the data card's counts."""

    products: tuple[Product, ...]
    prices: dict[str, float]
    card: dict[str, int]
    by_asin: dict[str, Product] = field(default_factory=dict)


def parse_pricing(pricing: str | None) -> tuple[tuple[float, ...], str]:
    """Prices in dollars and how they were read: ``ok``, ``default_missing`` or ``default_unparsed``.

    The original's rule: every piece after a ``$`` with all but digits and dots removed; the first two make a range.
    Where that rule raises, the product keeps its place at the default price.
    """
    if not pricing:
        return (DEFAULT_PRICE,), "default_missing"
    pieces = [re.sub(r"[^\d.]", "", piece) for piece in pricing.split("$")[1:]]
    try:
        prices = tuple(float(Decimal(piece)) for piece in pieces)
    except InvalidOperation:
        prices = ()
    return (prices[:2], "ok") if prices else ((DEFAULT_PRICE,), "default_unparsed")


def parse_options(customization: Any) -> dict[str, tuple[str, ...]]:
    """Option groups of a raw product; groups without content are left out, ``/`` reads `` | `` as in the original."""
    if not isinstance(customization, dict):
        return {}
    return {
        group.lower(): tuple(content["value"].strip().replace("/", " | ").lower() for content in contents)
        for group, contents in customization.items()
        if contents is not None
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _product(
    raw: dict[str, Any], entry: dict[str, Any] | None, human: list[dict[str, Any]] | None
) -> tuple[Product, str]:
    prices, status = parse_pricing(raw.get("pricing"))
    bullets = raw.get("small_description")
    bullets = bullets if isinstance(bullets, list) else [bullets]
    attributes = (entry or {}).get("attributes", NO_ATTRIBUTES)
    product = Product(
        asin=raw["asin"],
        title=raw["name"],
        description=_text(raw.get("full_description")),
        bullets=tuple(_text(bullet) for bullet in bullets),
        prices=prices,
        options=parse_options(raw.get("customization_options")),
        attributes=tuple(attributes),
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
        instruction=(entry or {}).get("instruction"),
        instruction_attributes=tuple((entry or {}).get("instruction_attributes") or ()),
        human_instructions=tuple(human or ()),
    )
    return product, status


def build_catalogue(
    raw_products: list[dict[str, Any]],
    attributes: dict[str, dict[str, Any]],
    human: dict[str, list[dict[str, Any]]],
    price_seed: int,
) -> Catalogue:
    """Products in file order. Ids ``nan``, longer than 10 or seen before are skipped, as in the original, and counted.

    Raises EnvironmentFault, naming product and field, if a product lacks a required field.
    """
    card: Counter[str] = Counter(ok=0, default_missing=0, default_unparsed=0, skipped_ids=0)
    by_asin: dict[str, Product] = {}
    for position, raw in enumerate(raw_products):
        asin = raw.get("asin")
        if not isinstance(asin, str) or asin == "nan" or len(asin) > 10 or asin in by_asin:
            card["skipped_ids"] += 1
            continue
        try:
            by_asin[asin], status = _product(raw, attributes.get(asin), human.get(asin))
        except (KeyError, AttributeError, TypeError) as error:
            raise EnvironmentFault(
                f"webshop products: entry {position} ({asin}): bad or missing field ({error!r}); "
                "expected WebShop's items_shuffle.json format"
            ) from error
        card[status] += 1
    rng = random.Random(price_seed)
    prices = {
        product.asin: product.prices[0] if len(product.prices) == 1 else rng.uniform(*product.prices)
        for product in by_asin.values()
    }
    card["products"] = len(by_asin)
    return Catalogue(tuple(by_asin.values()), prices, dict(card), by_asin)


def read_json(path: Path) -> Any:
    """The content of a JSON file; a missing or broken one is an EnvironmentFault that names it."""
    try:
        return load_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EnvironmentFault(f"webshop: {path} does not exist; check the environment's settings") from error
    except ValueError as error:
        raise EnvironmentFault(f"webshop: {path} is not valid JSON ({error}); download or prepare it again") from error


def load_catalogue(
    products: Path, attributes: Path, human: Path | None, price_seed: int, product_limit: int | None = None
) -> Catalogue:
    """Load WebShop's files: items_shuffle.json, items_ins_v2.json and, for human goals, items_human_ins.json.

    ``product_limit`` keeps the first products of the file only, before any id is skipped, as in the original.
    """
    return build_catalogue(
        read_json(products)[:product_limit],
        read_json(attributes),
        read_json(human) if human is not None else {},
        price_seed,
    )
