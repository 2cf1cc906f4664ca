"""A seeded synthetic catalogue, written in exactly WebShop's file formats. Synthetic [ours]: no product is real.

A product has three attributes, of which its title shows one or two; few products share all that a goal asks for, so
success needs a constrained query, a look at the item's options and price, and every requested option selected.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from rised.environments.webshop.words import BRANDS, DEPARTMENTS, PLURALS, REQUESTS, Department

GENERATOR_VERSION = 1
"""Part of the cache key: raise it when the same seed gives another catalogue."""

PRICES = range(5, 96)
"""Whole dollars, so that a price is a few digits for a small model."""
RANGE_SHARE = 0.02
MISSING_PRICE_SHARE = 0.01


class RawFiles(NamedTuple):
    """Contents of items_shuffle.json, items_ins_v2.json and items_human_ins.json."""

    products: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]]
    human: dict[str, list[dict[str, Any]]]


class _Draft(NamedTuple):
    """A product before it is written down."""

    asin: str
    department: Department
    noun: str
    attributes: list[str]
    options: dict[str, list[str]]


def _draw_product(number: int, rng: random.Random) -> _Draft:
    department = rng.choice(DEPARTMENTS)
    options = {
        group: sorted(rng.sample(values, rng.randint(2, min(4, len(values)))), key=values.index)
        for group, values in department.options.items()
    }
    return _Draft(
        f"S{number:09d}", department, rng.choice(department.nouns), rng.sample(department.attributes, 3), options
    )


def _pricing(rng: random.Random) -> str:
    low = rng.choice(PRICES)
    draw = rng.random()
    if draw < MISSING_PRICE_SHARE:
        return ""
    return f"${low}.00 to ${low + rng.randint(2, 9)}.00" if draw < MISSING_PRICE_SHARE + RANGE_SHARE else f"${low}.00"


def _raw_product(draft: _Draft, rng: random.Random) -> dict[str, Any]:
    shown = draft.attributes[: rng.choice((1, 2, 2))]
    article = "these" if draft.noun in PLURALS else "this"
    verb = "are" if draft.noun in PLURALS else "is"
    title = " ".join([rng.choice(BRANDS), *shown, draft.noun]).title()
    first, second, third = rng.sample(draft.attributes, 3)
    return {
        "name": title,
        "full_description": f"{article} {draft.noun} {verb} {first}, {second} and {third}.".capitalize(),
        "images": ["synthetic"],
        "product_category": f"{draft.department.path} › {draft.noun.title()}",
        "average_rating": round(rng.uniform(2.5, 5.0), 1),
        "small_description": [attribute.capitalize() for attribute in draft.attributes],
        "customization_options": {
            group.title(): [{"is_selected": False, "is_available": True, "value": value.title()} for value in values]
            for group, values in draft.options.items()
        },
        "asin": draft.asin,
        "category": draft.department.category,
        "query": draft.noun,
        "page": 1,
        "pricing": _pricing(rng),
    }


def _human_entry(draft: _Draft, rng: random.Random) -> dict[str, Any]:
    attributes = rng.sample(draft.attributes, rng.choice((1, 2, 2)))
    groups = list(draft.options)
    if len(groups) > 1 and rng.random() < 0.25:
        groups = [rng.choice(groups)]
    rng.shuffle(groups)
    wanted = {group: rng.choice(draft.options[group]) for group in groups}
    options = f" with {' and '.join(f'{group} {value}' for group, value in wanted.items())}" if wanted else ""
    instruction = rng.choice(REQUESTS).format(
        attributes=" and ".join(attributes),
        noun=draft.noun,
        options=options,
        verb="are" if draft.noun in PLURALS else "is",
    )
    return {
        "asin": draft.asin,
        "instruction": f"{instruction}.",
        "attributes": draft.attributes,
        "options": [f"{group}: {value}" for group, value in wanted.items()],
        "instruction_attributes": attributes,
        "instruction_options": list(wanted.values()),
        "assignment_id": "synthetic",
        "worker_id": "synthetic",
    }


def _synthetic_entry(draft: _Draft, rng: random.Random) -> dict[str, Any]:
    attributes = rng.sample(draft.attributes, 2)
    return {
        "attributes": draft.attributes,
        "instruction": f"Find me {', '.join(attributes)} {draft.noun}",
        "instruction_attributes": attributes,
    }


def generate(product_count: int, goals_per_product: int, seed: int) -> RawFiles:
    """A catalogue of ``product_count`` products. No two human instructions have the same words.

    A product whose draws repeat an earlier instruction gets fewer goals rather than a copy.
    """
    rng = random.Random(f"webshop/{GENERATOR_VERSION}/{seed}")
    files = RawFiles([], {}, {})
    seen: set[str] = set()
    for number in range(product_count):
        draft = _draw_product(number, rng)
        files.products.append(_raw_product(draft, rng))
        files.attributes[draft.asin] = _synthetic_entry(draft, rng)
        entries: list[dict[str, Any]] = []
        for _ in range(4 * goals_per_product):
            entry = _human_entry(draft, rng)
            if len(entries) < goals_per_product and entry["instruction"] not in seen:
                seen.add(entry["instruction"])
                entries.append(entry)
        files.human[draft.asin] = entries
    return files
