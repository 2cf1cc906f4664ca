"""The rules of the shop: pages, what can be clicked on each, and what a click or a search does.

Knows nothing of wording: how a page reads and how an action is spelled is in ``styles``. Names of clickables are the
original's, lower-cased ("back to search", "< prev", "next >", "buy now", product ids, option values).
"""

from __future__ import annotations

from enum import StrEnum

from rised.environments.webshop.catalogue import Product
from rised.environments.webshop.goals import Goal
from rised.environments.webshop.reward import Purchase, option_met, score_purchase
from rised.environments.webshop.store import Shop

BACK_TO_SEARCH = "back to search"
PREVIOUS = "< prev"
NEXT = "next >"
BUY = "buy now"


class Page(StrEnum):
    """Where the customer is."""

    SEARCH = "search"
    RESULTS = "results"
    ITEM = "item"
    DESCRIPTION = "description"
    FEATURES = "features"
    REVIEWS = "reviews"
    ATTRIBUTES = "attributes"
    DONE = "done"


SUB_PAGES = (Page.DESCRIPTION, Page.FEATURES, Page.REVIEWS, Page.ATTRIBUTES)


class Session:
    """One customer with one goal. Every method that acts returns whether the action was possible."""

    def __init__(self, shop: Shop, goal: Goal, page_size: int, show_attributes: bool) -> None:
        self.shop = shop
        self.goal = goal
        self.page_size = page_size
        self.sub_pages = SUB_PAGES if show_attributes else SUB_PAGES[:-1]
        self.purchase: Purchase | None = None
        self._start()

    def _start(self) -> None:
        self.page = Page.SEARCH
        self.query: str | None = None
        self.results: tuple[str, ...] = ()
        self.page_number = 1
        self.asin: str | None = None
        self.options: dict[str, str] = {}

    @property
    def product(self) -> Product:
        """The product whose item page (or sub-page) is open."""
        assert self.asin is not None
        return self.shop.product(self.asin)

    @property
    def visible(self) -> tuple[str, ...]:
        """Product ids on the current page of results, best first."""
        start = (self.page_number - 1) * self.page_size
        return self.results[start : start + self.page_size]

    @property
    def has_next(self) -> bool:
        return self.page_number * self.page_size < len(self.results)

    def rank(self, asin: str) -> int | None:
        """Place of a product among all results of the query, from 1."""
        return self.results.index(asin) + 1 if asin in self.results else None

    def search(self, keywords: str) -> bool:
        """A new search; possible from every page until the purchase, as in the original."""
        if self.page is Page.DONE or not keywords:
            return False
        self._start()
        self.query = keywords
        self.results = self.shop.index.search(keywords)
        self.page = Page.RESULTS
        return True

    def clickables(self) -> list[str]:
        """Everything that can be clicked on the current page."""
        if self.page in (Page.SEARCH, Page.DONE):
            return []
        if self.page is Page.RESULTS:
            turns = ([PREVIOUS] if self.page_number > 1 else []) + ([NEXT] if self.has_next else [])
            return [BACK_TO_SEARCH, *turns, *(asin.lower() for asin in self.visible)]
        if self.page is Page.ITEM:
            return [BACK_TO_SEARCH, PREVIOUS, *self.product.option_groups(), *self.sub_pages, BUY]
        return [BACK_TO_SEARCH, PREVIOUS]

    def click(self, name: str, group: str | None = None) -> bool:
        """Click something by its lower-cased name; ``group`` tells option groups apart that share a value."""
        if name not in self.clickables():
            return False
        if name == BACK_TO_SEARCH:
            self._start()
        elif self.page is Page.RESULTS:
            self._click_on_results(name)
        elif name == PREVIOUS:
            if self.page is Page.ITEM:
                self.page, self.asin, self.options = Page.RESULTS, None, {}
            else:
                self.page = Page.ITEM
        elif name == BUY:
            self.purchase = self.score(self.product, self.options)
            self.page = Page.DONE
        elif name in self.sub_pages:
            self.page = Page(name)
        else:
            self.options[group or self.product.option_groups()[name]] = name
        return True

    def _click_on_results(self, name: str) -> None:
        if name in (PREVIOUS, NEXT):
            self.page_number += 1 if name == NEXT else -1
            return
        self.asin = next(asin for asin in self.visible if asin.lower() == name)
        self.options = {}
        self.page = Page.ITEM

    def score(self, product: Product, options: dict[str, str]) -> Purchase:
        """What buying ``product`` with ``options`` (group -> value) earns under the goal."""
        asin = product.asin
        return score_purchase(product, self.shop.nouns[asin], self.goal, self.shop.price(asin), list(options.values()))

    def wanted_options(self, product: Product) -> dict[str, str]:
        """Of the product's options those that the goal asks for: group -> value, in the goal's order."""
        chosen: dict[str, str] = {}
        for wanted in self.goal.options:
            for group, values in product.options.items():
                value = next((value for value in values if option_met((value,), wanted)), None)
                if value is not None and group not in chosen:
                    chosen[group] = value
                    break
        return chosen

    def best_purchase(self, product: Product) -> Purchase:
        """The purchase with every wanted option that the product offers."""
        return self.score(product, self.wanted_options(product))
