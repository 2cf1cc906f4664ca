"""WebShop's files: prices, products, goals and their order, on the real sample and on the shared cases."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rised.environments.base import EnvironmentFault
from rised.environments.webshop.catalogue import Catalogue, build_catalogue, load_catalogue, parse_options
from rised.environments.webshop.generator import generate
from rised.environments.webshop.goals import NO_LIMIT, SHUFFLE_SEED, Goal, build_goals
from rised.environments.webshop.reward import normalise_colour, same_phrase
from rised.environments.webshop.words import DEPARTMENTS


@pytest.fixture(scope="module")
def real(shared_dir: Path) -> Catalogue:
    data = shared_dir / "data"
    return load_catalogue(
        data / "webshop_items_shuffle_1000.rebuilt.json",
        data / "webshop_items_ins_v2_1000.json",
        data / "webshop_items_human_ins_13.partial.json",
        price_seed=1,
    )


def _raw(asin: str, **fields: Any) -> dict[str, Any]:
    return {
        "asin": asin,
        "name": "Kettle",
        "full_description": "",
        "small_description": ["steel"],
        "pricing": "$5.00",
        "customization_options": None,
        "category": "garden",
        "query": "Kettle ",
        "product_category": "Home › Kitchen",
    } | fields


def test_odd_prices_follow_the_reference_and_drop_no_product(cases_dir: Path) -> None:
    case = cases_dir / "01-webshop-odd-prices"
    raw = json.loads((case / "products.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    catalogue = build_catalogue(raw, {}, {}, price_seed=1)
    assert [list(product.prices) for product in catalogue.products] == [row["prices"] for row in expected]
    for status in ("ok", "default_missing", "default_unparsed"):
        assert catalogue.card[status] == sum(row["status"] == status for row in expected)


def test_a_range_is_sold_at_a_price_between_its_ends_in_either_order() -> None:
    raw = [_raw("A", pricing="$15.99 to $10.99"), _raw("B", pricing="$10.99 to $15.99")]
    catalogue = build_catalogue(raw, {}, {}, price_seed=3)
    assert all(10.99 <= catalogue.prices[asin] <= 15.99 for asin in "AB")
    assert catalogue.products[0].price_tag == "$15.99 to $10.99"


def test_ids_that_the_original_skips_are_skipped_and_counted() -> None:
    catalogue = build_catalogue([_raw("A"), _raw("nan"), _raw("LONGER-THAN-10"), _raw("A")], {}, {}, price_seed=1)
    assert [product.asin for product in catalogue.products] == ["A"]
    assert catalogue.card["skipped_ids"] == 3


def test_null_description_and_bullets_read_as_empty_text() -> None:
    product = build_catalogue([_raw("A", full_description=None, small_description=None)], {}, {}, 1).products[0]
    assert product.description == "" and product.bullets == ("",) and product.query == "kettle"


def test_a_product_without_a_required_field_is_named() -> None:
    raw = _raw("B0BAD")
    del raw["query"]
    with pytest.raises(EnvironmentFault, match=r"entry 1 \(B0BAD\).*query"):
        build_catalogue([_raw("A"), raw], {}, {}, 1)


def test_option_values_are_lower_cased_and_slashes_spelled_as_on_the_page() -> None:
    options = parse_options({"Size": [{"value": " 8/9 "}], "Color": None})
    assert options == {"size": ("8 | 9",)}


def test_the_thousand_real_products_give_the_known_synthetic_goals(real: Catalogue) -> None:
    assert real.card["products"] == 1000
    assert len(build_goals(real, "synthetic", price_seed=1)) == 6910


def test_a_product_limit_keeps_the_first_products_of_the_file(shared_dir: Path) -> None:
    data = shared_dir / "data"
    with (data / "webshop_documents_100.jsonl").open() as lines:
        first = [json.loads(line)["id"] for line in lines]
    files = data / "webshop_items_shuffle_1000.rebuilt.json", data / "webshop_items_ins_v2_1000.json"
    assert list(load_catalogue(*files, None, 1, product_limit=100).by_asin) == first


def test_every_limit_lies_above_the_price_by_at_most_four_steps(real: Catalogue) -> None:
    for goal in build_goals(real, "synthetic", price_seed=1):
        price = real.prices[goal.asin]
        assert goal.price_upper == NO_LIMIT or 10 < goal.price_upper - price + 10 <= 50


def test_undoing_the_shuffle_of_the_real_human_goals_gives_product_order(real: Catalogue, shared_dir: Path) -> None:
    texts = json.loads((shared_dir / "data" / "webshop_human_goals.json").read_text())
    order = list(range(len(texts)))
    random.Random(SHUFFLE_SEED).shuffle(order)
    original = [text for _, text in sorted(zip(order, texts, strict=True))]
    first = build_goals(real, "human", price_seed=1)
    in_product_order = sorted(first, key=lambda goal: _place(real, goal))
    undone = [goal.instruction.split(", and price lower")[0] for goal in in_product_order]
    assert len(undone) == 13
    assert [text.strip(".") for text in original[:13]] == [text.lower().replace("'", "") for text in undone]


def _place(catalogue: Catalogue, goal: Goal) -> int:
    return list(catalogue.by_asin).index(goal.asin)


def test_price_draws_of_goals_depend_on_the_seed_only(real: Catalogue) -> None:
    assert build_goals(real, "human", 5) == build_goals(real, "human", 5)
    assert build_goals(real, "synthetic", 5) != build_goals(real, "synthetic", 6)


def test_the_generator_is_deterministic_and_large_and_varied_enough() -> None:
    files = generate(1200, 2, seed=7)
    assert files == generate(1200, 2, seed=7) and files != generate(1200, 2, seed=8)
    assert len(files.products) >= 1000 and len({product["category"] for product in files.products}) >= 5
    catalogue = build_catalogue(*files, price_seed=1)
    goals = build_goals(catalogue, "human", price_seed=1)
    assert len(goals) >= 2000
    assert len({goal.instruction.split(", and price")[0] for goal in goals}) == len(goals)
    assert catalogue.card["default_unparsed"] == 0 and catalogue.card["default_missing"] > 0


def test_no_two_generated_values_of_one_kind_count_as_the_same_for_the_reward() -> None:
    for department in DEPARTMENTS:
        kinds = [department.attributes, [value for values in department.options.values() for value in values]]
        for values in ([normalise_colour(value) for value in kinds[1]], list(kinds[0])):
            for left in values:
                assert [right for right in values if same_phrase(left, right)] == [left]
        for left in department.attributes:
            assert [right for right in department.attributes if left in right] == [left]


@pytest.mark.parametrize("content", [None, "{not json", '[{"asin":\n"\\ud800"}]'])
def test_a_missing_or_broken_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "items_shuffle.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EnvironmentFault, match=r"items_shuffle\.json"):
        load_catalogue(path, path, None, 1)
