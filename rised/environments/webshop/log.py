"""What the environment logs of each step (``StepResult.info``): the ground truth that rubric detectors read.

All values are JSON. Every step:

- ``kind``: "search", "click", or "unreadable" (the reply was no action); ``argument``: lower-cased, after aliases
- ``valid``; ``invalid_reason``: null, "format" (unreadable) or "not_on_page"
- ``page_before``, ``page``: search, results, item, description, features, reviews, attributes, done
- ``query``: of the current results or null; ``page_number`` from 1; ``changed``: whether the session's state changed
- ``selected``: option group -> value, now selected on the open item

Only where it applies:

- first step: ``goal`` = {instruction, attributes, options, price_upper, query}
- after an action that shows results: ``results`` = [[id, price, over_limit, fits], ...] on the page, ``total``
- on an item or its sub-pages: ``item`` = {asin, rank, price, over_limit, same_type, attributes_in_title,
  attributes_met, options_offered, fits}; price in dollars; counts are of what the goal asks for; ``fits``: buying it
  with the wanted options would earn reward 1
- after selecting an option: ``option`` = {group, value, requested, contradicts}; ``contradicts``: the goal asks for
  another value of this group
- after the purchase: ``purchase`` = the reward and its parts, and ``item``
"""

from __future__ import annotations

from typing import Any

from rised.environments.webshop.reward import option_met
from rised.environments.webshop.session import Page, Session
from rised.environments.webshop.styles import Click


class StepLog:
    """Builds the log of one episode; item facts are computed once per product."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._facts: dict[str, dict[str, Any]] = {}
        self._wanted_groups = set(session.wanted_options(session.shop.product(session.goal.asin)))
        self._first = True

    def item(self, asin: str) -> dict[str, Any]:
        """Facts of one product under the goal."""
        if asin not in self._facts:
            session, product = self._session, self._session.shop.product(asin)
            best = session.best_purchase(product)
            price = round(session.shop.price(asin), 2)
            self._facts[asin] = {
                "asin": asin,
                "price": price,
                "over_limit": not best.price_ok,
                "same_type": best.query_match or best.category_match,
                "attributes_in_title": sum(wanted in product.title.lower() for wanted in session.goal.attributes),
                "attributes_met": best.attributes_met,
                "options_offered": best.options_met,
                "fits": best.success,
            }
        return {**self._facts[asin], "rank": self._session.rank(asin)}

    def step(
        self, action: tuple[str, str] | None, click: Click | None, page_before: Page, valid: bool, changed: bool
    ) -> dict[str, Any]:
        """The log of the step just taken; ``action`` is None for an unreadable reply."""
        session, goal = self._session, self._session.goal
        info: dict[str, Any] = {
            "kind": action[0] if action else "unreadable",
            "argument": click.name if click else action[1] if action else "",
            "valid": valid,
            "invalid_reason": None if valid else "not_on_page" if action else "format",
            "page_before": str(page_before),
            "page": str(session.page),
            "query": session.query,
            "page_number": session.page_number,
            "changed": changed,
            "selected": dict(session.options),
        }
        if self._first:
            info["goal"] = {
                "instruction": goal.instruction,
                "attributes": list(goal.attributes),
                "options": list(goal.options),
                "price_upper": goal.price_upper,
                "query": goal.query,
            }
            self._first = False
        if session.page is Page.RESULTS and valid:
            shown = [self.item(asin) for asin in session.visible]
            info["results"] = [[item["asin"], item["price"], item["over_limit"], item["fits"]] for item in shown]
            info["total"] = len(session.results)
        if session.asin is not None:
            info["item"] = self.item(session.asin)
        if click and valid and page_before is Page.ITEM and session.page is Page.ITEM:
            group = click.group or session.product.option_groups()[click.name]
            requested = any(option_met((click.name,), wanted) for wanted in goal.options)
            info["option"] = {
                "group": group,
                "value": click.name,
                "requested": requested,
                "contradicts": not requested and group in self._wanted_groups,
            }
        if session.purchase is not None:
            info["purchase"] = session.purchase.to_info()
        return info
