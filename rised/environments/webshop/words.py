"""The words of the generated catalogue: a few hundred, so that a small model can learn them. All invented [ours]."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Department:
    """One kind of goods: WebShop category, category path, nouns, attributes, and option groups with their values."""

    category: str
    path: str
    nouns: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]


BRANDS = tuple("acme nova zenith orion luma kite terra pixel vega mira sol aero bolt cedar delta ember".split())

_SIZES = ("small", "medium", "large")

DEPARTMENTS = (
    Department(
        "fashion",
        "Clothing, Shoes & Jewelry › Shoes",
        ("sneakers", "boots", "sandals", "loafers", "slippers"),
        ("waterproof", "leather", "lightweight", "cushioned", "airy", "slip resistant", "memory foam", "wide fit"),
        {"color": ("black", "white", "red", "blue", "brown", "green"), "size": ("6", "7", "8", "9", "10", "11")},
    ),
    Department(
        "fashion",
        "Clothing, Shoes & Jewelry › Clothing",
        ("jacket", "shirt", "sweater", "hoodie", "dress", "skirt"),
        ("cotton", "slim cut", "long sleeve", "quick drying", "stretchy", "lined", "machine washable", "hooded"),
        {"color": ("black", "white", "pink", "navy", "purple", "yellow"), "size": _SIZES},
    ),
    Department(
        "electronics",
        "Electronics › Accessories",
        ("headphones", "speaker", "charger", "keyboard", "monitor", "camera"),
        ("wireless", "bluetooth", "portable", "rechargeable", "noise cancelling", "fast charging", "slim", "backlit"),
        {"color": ("black", "white", "silver", "gold", "pink")},
    ),
    Department(
        "beauty",
        "Beauty & Personal Care › Care",
        ("shampoo", "lotion", "lipstick", "sunscreen", "soap", "serum"),
        ("organic", "fragrance free", "vegan", "moisturizing", "cruelty free", "hypoallergenic", "oily skin", "gentle"),
        {"scent": ("lavender", "rose", "mint", "vanilla", "citrus"), "size": _SIZES},
    ),
    Department(
        "garden",
        "Home & Kitchen › Home",
        ("lamp", "curtain", "pillow", "rug", "blanket", "chair"),
        ("washable", "handmade", "modern", "vintage", "soft", "durable", "eco friendly", "fade proof"),
        {"color": ("grey", "beige", "navy", "ivory", "green", "red"), "size": ("small", "medium", "large", "queen")},
    ),
    Department(
        "grocery",
        "Grocery & Gourmet Food › Pantry",
        ("coffee", "tea", "cookies", "chips", "granola", "pasta"),
        ("gluten free", "low sugar", "fair trade", "keto", "roasted", "non gmo", "crunchy", "kosher"),
        {"flavor": ("chocolate", "vanilla", "caramel", "honey", "hazelnut"), "pack": ("1", "2", "4", "6")},
    ),
    Department(
        "sports",
        "Sports & Outdoors › Outdoor",
        ("bottle", "backpack", "tent", "gloves", "mat", "helmet"),
        ("leak proof", "foldable", "non slip", "insulated", "heavy duty", "ventilated", "padded", "reflective"),
        {"color": ("black", "blue", "orange", "green", "grey"), "size": _SIZES},
    ),
    Department(
        "pets",
        "Pet Supplies › Pets",
        ("collar", "leash", "bowl", "bed", "toy"),
        ("chew resistant", "adjustable", "easy clean", "indoor", "floating", "quiet", "orthopedic", "stainless steel"),
        {"color": ("black", "red", "blue", "pink", "purple"), "size": _SIZES},
    ),
)

REQUESTS = (
    "i need {attributes} {noun}{options}",
    "find me {attributes} {noun}{options}",
    "i am looking for {noun} that {verb} {attributes}{options}",
    "i want to buy {attributes} {noun}{options}",
)
"""Wordings of an instruction; the loader appends the price limit."""

PLURALS = frozenset("sneakers boots sandals loafers slippers headphones cookies chips gloves".split())
