"""An expert customer, the source of warm-start demonstrations. It reads the live session, so it can be interrupted.

It searches with the goal's words, looks first at results whose title and price fit, leaves an item whose page shows
that it does not fit, selects every wanted option and buys. After two such looks it only opens items that fit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from rised.environments.webshop.catalogue import Product
from rised.environments.webshop.session import BUY, NEXT, PREVIOUS, Page, Session
from rised.environments.webshop.styles import Click, Style

HONEST_LOOKS = 2
"""Items opened on what the results show alone; later ones are known to fit."""
PAGES_PER_QUERY = 2


def shop_well(session: Session, style: Style, seed: int, noise: float) -> Iterator[str]:
    """Actions that buy a fitting item; reward 1 with ``noise`` 0.

    ``noise`` is the chance, at each place where one fits, of a wasteful or wrong action that is then made good: a
    poorer query, a wrong item and back, a look at the next page or at the description, a wrong option before the right.
    """
    rng = random.Random(f"webshop-expert/{seed}")
    customer = _Customer(session, style, rng, noise)
    yield from customer.shop()


class _Customer:
    def __init__(self, session: Session, style: Style, rng: random.Random, noise: float) -> None:
        self._session = session
        self._style = style
        self._rng = rng
        self._noise = noise
        self._looks = 0
        self._rejected: set[str] = set()

    def _slips(self) -> bool:
        return self._rng.random() < self._noise

    def _click(self, name: str, group: str | None = None) -> str:
        return self._style.spell(self._session, Click(name.lower(), group))

    def _queries(self) -> list[str]:
        goal = self._session.goal
        words = [*goal.attributes, goal.query]
        wider = [*words, *goal.options]
        wanted = self._session.shop.product(goal.asin)
        good = [words, wider] if self._rng.random() < 0.5 and goal.options else [wider]
        if self._slips():
            good.insert(0, self._rng.choice([[goal.query], words[1:], [words[0]]]))
        return [" ".join(query) for query in good] + [f"{wanted.title} {wanted.description}".lower()]

    def shop(self) -> Iterator[str]:
        for query in self._queries():
            yield f"search[{query}]"
            for page in range(PAGES_PER_QUERY):
                if page:
                    if not self._session.has_next:
                        break
                    yield self._click(NEXT)
                elif self._slips() and self._session.has_next:
                    yield self._click(NEXT)
                    yield self._click(PREVIOUS)
                yield from self._look_around()
                if self._session.page is Page.ITEM:
                    yield from self._buy()
                    return

    def _look_around(self) -> Iterator[str]:
        """Open items of this page until one fits; ends on its page, or on the results if none does."""
        session = self._session
        misfits = [asin for asin in session.visible if not session.best_purchase(session.shop.product(asin)).success]
        if misfits and self._slips():
            yield self._click(self._rng.choice(misfits))
            yield self._click(PREVIOUS)
        for product in self._candidates():
            fits = session.best_purchase(product).success
            if not fits and self._looks >= HONEST_LOOKS:
                continue
            self._looks += 1
            yield self._click(product.asin)
            if fits:
                return
            self._rejected.add(product.asin)
            yield self._click(PREVIOUS)

    def _candidates(self) -> list[Product]:
        """Results of this page that fit by title and price tag, those that show more wanted attributes first."""
        session, goal = self._session, self._session.goal
        shown = [session.shop.product(asin) for asin in session.visible if asin not in self._rejected]

        def plausible(product: Product) -> bool:
            return max(product.prices) <= goal.price_upper and goal.query in product.title.lower()

        def attributes_shown(product: Product) -> int:
            return sum(attribute in product.title.lower() for attribute in goal.attributes)

        ranked = sorted((item for item in shown if plausible(item)), key=attributes_shown, reverse=True)
        others = [item for item in shown if item not in ranked and session.best_purchase(item).success]
        return ranked + others

    def _buy(self) -> Iterator[str]:
        session = self._session
        if self._slips():
            yield self._click(self._rng.choice((Page.DESCRIPTION, Page.FEATURES)))
            yield self._click(PREVIOUS)
        for group, value in session.wanted_options(session.product).items():
            wrong = [other for other in session.product.options[group] if other != value]
            if wrong and self._slips():
                yield self._click(self._rng.choice(wrong), group)
            yield self._click(value, group)
        yield self._click(BUY)
