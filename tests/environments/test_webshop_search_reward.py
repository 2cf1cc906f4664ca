"""Search against golden Lucene rankings, and the reward against the shared case of 13 purchases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rised.environments.webshop.catalogue import Product, load_catalogue
from rised.environments.webshop.goals import Goal
from rised.environments.webshop.reward import normalise_colour, score_purchase
from rised.environments.webshop.search import SearchIndex, document_text


def _product(asin: str, title: str, **fields: Any) -> Product:
    values: dict[str, Any] = {
        "description": "",
        "bullets": (),
        "prices": (5.0,),
        "options": {},
        "attributes": (),
        "category": "garden",
        "query": "kettle",
        "product_category": "Home › Kitchen",
    }
    return Product(asin=asin, title=title, **(values | fields))


@pytest.fixture(scope="module")
def real_products(shared_dir: Path) -> tuple[Product, ...]:
    data = shared_dir / "data"
    return load_catalogue(
        data / "webshop_items_shuffle_1000.rebuilt.json", data / "webshop_items_ins_v2_1000.json", None, 1
    ).products


def test_index_documents_of_real_products_equal_the_original_ones(
    real_products: tuple[Product, ...], shared_dir: Path
) -> None:
    with (shared_dir / "data" / "webshop_documents_1k.from_lucene.jsonl").open() as lines:
        golden = {document["id"]: document["contents"] for document in map(json.loads, lines)}
    assert {product.asin: document_text(product) for product in real_products} == golden


def test_the_first_ten_results_overlap_lucenes_by_at_least_95_percent(
    real_products: tuple[Product, ...], shared_dir: Path
) -> None:
    index = SearchIndex(real_products)
    queries = json.loads((shared_dir / "data" / "webshop_200_queries.json").read_text())
    golden = json.loads((shared_dir / "data" / "webshop_lucene_top50_200queries.json").read_text())
    found = [index.search(query) for query in queries]
    overlaps = [len(set(ours[:10]) & set(theirs[:10])) / 10 for ours, theirs in zip(found, golden, strict=True)]
    assert sum(overlaps) / len(overlaps) >= 0.95
    assert max(len(ours) for ours in found) == 50


def test_equal_scores_keep_the_order_of_the_file_and_misses_are_left_out() -> None:
    titles = ["red kettle", "blue lamp", "red kettle"]
    index = SearchIndex([_product(str(number), title) for number, title in enumerate(titles)])
    assert index.search("red") == ("0", "2")
    assert index.search("the sofa") == ()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The women's boots", ["women", "boot"]),
        ("paraben-free 14.125 x", ["paraben", "free", "14.125", "x"]),
    ],
)
def test_terms_are_those_of_lucenes_english_analyser(text: str, terms: list[str]) -> None:
    assert SearchIndex([_product("0", "kettle")]).tokens(text) == terms


def _cases(cases_dir: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((cases_dir / "05-webshop-reward-arithmetic" / "expected.json").read_text())
    return cases


def test_the_thirteen_purchases_earn_exactly_their_reward(cases_dir: Path) -> None:
    cases = _cases(cases_dir)
    assert len(cases) == 13
    for case in cases:
        bought, wanted = case["bought"], case["goal"]
        product = _product(
            "B",
            bought["Title"],
            description=bought["Description"],
            bullets=tuple(bought["BulletPoints"]),
            attributes=tuple(bought["Attributes"]),
            query=bought["query"],
            product_category=bought["product_category"],
        )
        goal = Goal(
            asin="G",
            instruction="",
            attributes=tuple(wanted["attributes"]),
            options=tuple(wanted["goal_options"]),
            price_upper=wanted["price_upper"],
            query=wanted["query"],
            product_category=wanted["product_category"],
            nouns=tuple(wanted["nouns"]),
        )
        purchase = score_purchase(product, bought["nouns"], goal, case["price"], case["options"])
        assert purchase.reward == pytest.approx(case["reward"], abs=1e-9), case["name"]
        assert purchase.success == (abs(case["reward"] - 1) < 1e-9), case["name"]
        assert (purchase.r_type, purchase.attributes_met, purchase.options_met, purchase.price_ok) == (
            case["r_type"],
            case["n_att"],
            case["n_opt"],
            case["price_ok"],
        ), case["name"]
        assert purchase.title_score == pytest.approx(case["title_score"], abs=1e-12), case["name"]


def test_a_colour_stands_for_the_first_known_colour_word_it_contains() -> None:
    assert normalise_colour("heather navy blue") == "blue"
    assert normalise_colour("32 inch") == "32 inch"
