"""WebShop's reward of a purchase, exactly.

R = r_type · (n_att + n_opt + [price ≤ limit]) / (|attributes| + |options| + 1)   (WebShop, engine/goal.py)

Nouns of the titles are given (spaCy's NOUN/PROPN tokens, computed at prepare time), so nothing here loads a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from thefuzz import fuzz

from rised.environments.webshop.catalogue import Product
from rised.environments.webshop.goals import Goal

FUZZY_LIMIT = 85
"""token_set_ratio must exceed this for two phrases to count as the same."""

COLOURS = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel
    camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry
    cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green
    grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot
    midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple
    rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan
    taupe teal tiger turquoise violet walnut wheat white wine yellow
    """.split()
)
"""WebShop's colour words in their order: the first one contained in an option stands for the option."""


@dataclass(frozen=True, slots=True)
class Purchase:
    """A reward and its parts. ``success`` is a reward of 1."""

    reward: float
    r_type: float
    title_score: float
    query_match: bool
    category_match: bool
    attributes_met: int
    attributes_wanted: int
    options_met: int
    options_wanted: int
    price_ok: bool

    @property
    def success(self) -> bool:
        return abs(self.reward - 1.0) < 1e-9

    def to_info(self) -> dict[str, Any]:
        """Plain JSON values, for the step's log."""
        return asdict(self)


@lru_cache(maxsize=65536)
def same_phrase(left: str, right: str) -> bool:
    """Whether two phrases count as the same for the reward."""
    return bool(fuzz.token_set_ratio(left, right) > FUZZY_LIMIT)


@lru_cache(maxsize=65536)
def normalise_colour(option: str) -> str:
    """The first WebShop colour contained in the option, else the option itself."""
    return next((colour for colour in COLOURS if colour in option), option)


def attribute_met(product: Product, attribute: str) -> bool:
    """Whether the product has the attribute: a like one in its list, or the very words in its texts."""
    if any(same_phrase(own, attribute) for own in product.attributes):
        return True
    return (
        attribute in product.title.lower()
        or attribute in " ".join(product.bullets).lower()
        or attribute in product.description.lower()
    )


def option_met(chosen: Iterable[str], wanted: str) -> bool:
    """Whether one of the chosen option values counts as the wanted one."""
    colour = normalise_colour(wanted)
    return any(same_phrase(normalise_colour(value), colour) for value in chosen)


def type_score(query_match: bool, category_match: bool, title_score: float) -> float:
    """r_type: 1, lowered to .5 for another kind of product, .1 below a tenth of the nouns, 0 for none of them."""
    if title_score == 0.0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if query_match or category_match or title_score > 0.2 else 0.5


def score_purchase(
    product: Product, nouns: Collection[str], goal: Goal, price: float, chosen: Collection[str]
) -> Purchase:
    """Score buying ``product`` (title nouns ``nouns``) at ``price`` dollars with the option values ``chosen``."""
    query_match = product.query == goal.query
    parts = [{part.strip() for part in path.split("›")} for path in (product.product_category, goal.product_category)]
    category_match = len(parts[0] & parts[1]) >= 2
    wanted_nouns = set(goal.nouns)
    title_score = len(set(nouns) & wanted_nouns) / len(goal.nouns) if goal.nouns else 0.2
    r_type = type_score(query_match, category_match, title_score)
    attributes_met = sum(attribute_met(product, attribute) for attribute in goal.attributes)
    options_met = sum(option_met(chosen, option) for option in goal.options)
    price_ok = price <= goal.price_upper
    total = len(goal.attributes) + len(goal.options) + 1
    return Purchase(
        reward=r_type * (attributes_met + options_met + price_ok) / total,
        r_type=r_type,
        title_score=title_score,
        query_match=query_match,
        category_match=category_match,
        attributes_met=attributes_met,
        attributes_wanted=len(goal.attributes),
        options_met=options_met,
        options_wanted=len(goal.options),
        price_ok=price_ok,
    )
