"""How pages read and how actions are spelled: two renderings over the same rules.

``full`` follows the original's text mode: the visible strings of the page joined by `` [SEP] ``. ``compact`` [ours] is
for small models: results numbered on each page, options worded as in the goal, short pages, short names of buttons.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from rised.environments.thinking import without_thinking
from rised.environments.webshop.catalogue import Product
from rised.environments.webshop.session import (
    BACK_TO_SEARCH,
    BUY,
    NEXT,
    PREVIOUS,
    SUB_PAGES,
    Page,
    Session,
)

_ACTION = re.compile(r"(.+)\[(.+)\]")
"""WebShop's own pattern, matched at the start of the text: greedy, within one line, whatever follows the bracket."""
_LABELLED_ACTION = re.compile(r"[Aa]ction: *\n* *((search|click)\[.+?])")
"""AgentBench's pattern."""
INVALID = "invalid action"


class Click(NamedTuple):
    """A click in the rules' own words."""

    name: str
    group: str | None = None


class Style(Protocol):
    """One rendering."""

    def system_prompt(self, sub_pages: tuple[Page, ...]) -> str: ...

    def read(self, reply: str) -> tuple[str, str] | None:
        """("search" or "click", lower-cased argument), or None if the reply is no action."""
        ...

    def resolve(self, session: Session, argument: str) -> Click:
        """What a click's argument means on the current page."""
        ...

    def render(self, session: Session) -> str:
        """The current page."""
        ...

    def refusal(self, session: Session) -> str:
        """The observation after an action that changed nothing."""
        ...

    def confirm(self, session: Session, click: Click) -> str:
        """The observation after an option was selected."""
        ...

    def spell(self, session: Session, click: Click) -> str:
        """The action text for a click, as a policy would write it on the current page."""
        ...


def _parse(text: str) -> tuple[str, str] | None:
    """WebShop's reading of an action: the name before the last bracket that fits must be the whole name."""
    match = _ACTION.match(text)
    return (match[1], match[2].lower()) if match and match[1] in ("search", "click") else None


class FullStyle:
    """The original's text observations and actions. A reply with AgentBench's label acts by what follows the label."""

    def system_prompt(self, sub_pages: tuple[Page, ...]) -> str:
        names = ", ".join(f"click[{page}]" for page in sub_pages)
        return (
            "You are shopping on a web site. Find and buy a product that fits the instruction.\n"
            "Every turn you see a page and answer with one action:\n"
            "search[keywords] looks for products; click[value] clicks something that the page shows, by its words: "
            f"a product id, an option, click[{NEXT}], click[{PREVIOUS}], click[{BACK_TO_SEARCH}], {names}.\n"
            f"Select the wanted options on the product's page, then click[{BUY}], which ends the task. "
            "An action that is not possible on the page changes nothing.\n"
            "Answer in the form\nThought: why\nAction: search[...] or click[...]"
        )

    def read(self, reply: str) -> tuple[str, str] | None:
        text = without_thinking(reply)
        labelled = _LABELLED_ACTION.search(text)
        return _parse(labelled[1] if labelled else text)

    def resolve(self, session: Session, argument: str) -> Click:
        return Click(argument)

    def render(self, session: Session) -> str:
        return " [SEP] ".join(self._strings(session))

    def _strings(self, session: Session) -> list[str]:
        heading = ["Instruction:", session.goal.instruction]
        if session.page is Page.SEARCH:
            return ["WebShop", *heading, "Search"]
        if session.page is Page.DONE and session.purchase is not None:
            return ["Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", str(session.purchase.reward)]
        heading.append("Back to Search")
        if session.page is Page.RESULTS:
            turns = (["< Prev"] if session.page_number > 1 else []) + (["Next >"] if session.has_next else [])
            shown = [session.shop.product(asin) for asin in session.visible]
            items = [text for product in shown for text in (product.asin, product.title, product.price_tag)]
            return [*heading, f"Page {session.page_number} (Total results: {len(session.results)})", *turns, *items]
        product = session.product
        heading.append("< Prev")
        if session.page is Page.ITEM:
            options = [text for group, values in product.options.items() for text in (group, *values)]
            buttons = [*(page.title() for page in session.sub_pages), "Buy Now"]
            return [*heading, *options, product.title, f"Price: {product.price_tag}", "Rating: N.A.", *buttons]
        return [*heading, *_sub_page(product, session.page)]

    def refusal(self, session: Session) -> str:
        return self.render(session)

    def confirm(self, session: Session, click: Click) -> str:
        return self.render(session)

    def spell(self, session: Session, click: Click) -> str:
        return f"click[{click.name}]"


def _sub_page(product: Product, page: Page) -> list[str]:
    if page is Page.DESCRIPTION:
        return [product.description or "No Description"]
    if page is Page.FEATURES:
        return [bullet for bullet in product.bullets if bullet] or ["No Features"]
    if page is Page.ATTRIBUTES:
        return [*product.attributes, product.category, product.query, product.product_category]
    return ["No reviews found"]


def _dollars(product: Product) -> str:
    return "$" + "-".join(f"{price:.0f}" if price == int(price) else f"{price:.2f}" for price in product.prices)


class CompactStyle:
    """Numbered results, ``click[color black]``, ``click[buy]``, ``click[back]``; the original's names work too.

    Blanks around the action and around its argument are forgiven [ours].
    """

    def system_prompt(self, sub_pages: tuple[Page, ...]) -> str:
        return "webshop"

    def read(self, reply: str) -> tuple[str, str] | None:
        parsed = _parse(without_thinking(reply).strip())
        return (parsed[0], parsed[1].strip()) if parsed and parsed[1].strip() else None

    def resolve(self, session: Session, argument: str) -> Click:
        if session.page is Page.RESULTS:
            if argument.isdecimal() and 0 < int(argument) <= len(session.visible):
                return Click(session.visible[int(argument) - 1].lower())
            names = {"next": NEXT, "prev": PREVIOUS, "back": BACK_TO_SEARCH}
        else:
            names = {"back": PREVIOUS, "buy": BUY}
        if session.page is Page.ITEM:
            for group, values in session.product.options.items():
                value = argument.removeprefix(f"{group} ")
                if value != argument and value in values:
                    return Click(value, group)
        return Click(names.get(argument, argument))

    def render(self, session: Session) -> str:
        if session.page is Page.SEARCH:
            return re.sub(r"(\d)\.00 dollars", r"\1 dollars", session.goal.instruction).lower()
        if session.page is Page.DONE:
            return "bought"
        if session.page is Page.RESULTS:
            shown = [session.shop.product(asin) for asin in session.visible]
            lines = [f"{number} {item.title.lower()} {_dollars(item)}" for number, item in enumerate(shown, 1)]
            return "; ".join([*lines, *(["next"] if session.has_next else [])]) or "no results"
        product = session.product
        if session.page is Page.ITEM:
            options = [f"{group}: {', '.join(values)}" for group, values in product.options.items()]
            facts = ", ".join(product.attributes)
            return ". ".join([f"{product.title.lower()} {_dollars(product)}", facts, *options])
        return "; ".join(_sub_page(product, session.page)).lower()

    def refusal(self, session: Session) -> str:
        return INVALID

    def confirm(self, session: Session, click: Click) -> str:
        group = click.group or session.product.option_groups()[click.name]
        return f"{group} {click.name} selected"

    def spell(self, session: Session, click: Click) -> str:
        if session.page is Page.RESULTS and click.name in (asin.lower() for asin in session.visible):
            number = [asin.lower() for asin in session.visible].index(click.name) + 1
            return f"click[{number}]"
        if click.name == PREVIOUS:
            return "click[prev]" if session.page is Page.RESULTS else "click[back]"
        if click.name in (NEXT, BUY):
            return "click[next]" if click.name == NEXT else "click[buy]"
        if session.page is Page.ITEM and click.name not in (*SUB_PAGES, BACK_TO_SEARCH):
            return f"click[{click.group or session.product.option_groups()[click.name]} {click.name}]"
        return f"click[{click.name}]"


STYLES: dict[str, type[FullStyle] | type[CompactStyle]] = {"full": FullStyle, "compact": CompactStyle}
