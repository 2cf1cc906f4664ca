"""The shop's rules behind the common protocol, in both styles, and the expert that solves its tasks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from rised.environments.base import EnvironmentFault, StepResult, Task
from rised.environments.discovery import get
from rised.environments.webshop import WebshopEnvironment, WebshopSettings, prepare
from rised.environments.webshop.session import Page
from rised.environments.webshop.store import _load_shop, prepare_shop, restore_shop, shop_folder
from rised.environments.webshop.styles import STYLES


@pytest.fixture(scope="module")
def compact(tmp_path_factory: pytest.TempPathFactory) -> WebshopSettings:
    return WebshopSettings(cache_dir=str(tmp_path_factory.getbasetemp() / "webshop"))


@pytest.fixture(scope="module")
def full(compact: WebshopSettings) -> WebshopSettings:
    return compact.model_copy(update={"prompt_style": "full"})


@pytest.fixture(scope="module")
def tasks(compact: WebshopSettings) -> list[Task]:
    return prepare(compact, "train", 120, seed=3)


def _play(environment: WebshopEnvironment, task: Task, seed: int, noise: float) -> tuple[list[str], StepResult]:
    environment.reset(task, 0)
    actions: list[str] = []
    for action in environment.expert(seed, noise):
        actions.append(action)
        result = environment.step(action)
        if result.done:
            break
    return actions, result


def _open_first(environment: WebshopEnvironment, task: Task, query: str) -> None:
    environment.reset(task, 0)
    environment.step(f"search[{query}]")
    environment.step("click[1]")


def test_the_registry_offers_webshop_with_its_own_limit_of_twenty_turns() -> None:
    spec = get("webshop")
    assert spec.settings_type is WebshopSettings and spec.max_turns == 20


@pytest.mark.parametrize("style", ["compact", "full"])
def test_the_expert_solves_every_task_within_twelve_turns(
    style: str, request: pytest.FixtureRequest, tasks: list[Task]
) -> None:
    environment = WebshopEnvironment(request.getfixturevalue(style))
    for number, task in enumerate(tasks):
        actions, result = _play(environment, task, number, 0.0)
        assert result.done and result.reward == pytest.approx(1.0, abs=1e-9) and result.success, task.task_id
        assert result.stop == "environment_done" and len(actions) <= 12


def test_the_noisy_expert_wastes_actions_of_every_kind_and_recovers(
    compact: WebshopSettings, tasks: list[Task]
) -> None:
    environment = WebshopEnvironment(compact)
    played = [_play(environment, task, number, 0.3) for number, task in enumerate(tasks)]
    assert all(result.success for _, result in played)
    clean = [_play(environment, task, number, 0.0)[0] for number, task in enumerate(tasks)]
    assert sum(len(actions) for actions, _ in played) > 1.2 * sum(len(actions) for actions in clean)
    done = {action for actions, _ in played for action in actions}
    assert {"click[next]", "click[prev]", "click[back]", "click[features]", "click[description]"} <= done
    assert max(sum(action.startswith("search") for action in actions) for actions, _ in played) > 1


def test_the_same_seed_gives_the_same_demonstration(compact: WebshopSettings, tasks: list[Task]) -> None:
    environment = WebshopEnvironment(compact)
    assert _play(environment, tasks[0], 5, 0.3) == _play(environment, tasks[0], 5, 0.3)


def test_a_panel_depends_on_its_seed_only_and_survives_json(compact: WebshopSettings) -> None:
    panel = prepare(compact, "validation", 50, seed=1)
    assert panel == prepare(compact, "validation", 50, seed=1) != prepare(compact, "validation", 50, seed=2)
    stored = replace(panel[0], payload=json.loads(json.dumps(panel[0].payload)))
    assert WebshopEnvironment(compact).reset(stored, 0) == WebshopEnvironment(compact).reset(panel[0], 0)
    assert len(json.dumps(panel[0].payload)) < 1000


def test_too_many_tasks_are_refused_with_the_number_that_there_is(compact: WebshopSettings) -> None:
    with pytest.raises(EnvironmentFault, match="301 validation tasks .* give 208. .* human and .* synthetic"):
        prepare(compact, "validation", 301, seed=0)


@pytest.mark.parametrize(
    "action",
    [
        "click[no such thing]",
        "click[buy]",
        "click[7]",
        "click[prev]",
        "search[]",
        "buy it",
        "click[1] click[2]",
        "",
    ],
)
def test_an_impossible_action_changes_nothing(compact: WebshopSettings, tasks: list[Task], action: str) -> None:
    environment = WebshopEnvironment(compact)
    environment.reset(tasks[0], 0)
    environment.step("search[boots]")
    page, before = environment.session.page, environment.session.visible
    result = environment.step(action)
    assert not result.action_valid and not result.done and result.observation == "invalid action"
    assert result.info["changed"] is False and result.reward is None
    assert (environment.session.page, environment.session.visible) == (page, before)


def test_results_come_ten_a_page_up_to_fifty_and_turn_both_ways(full: WebshopSettings, tasks: list[Task]) -> None:
    environment = WebshopEnvironment(full)
    environment.reset(tasks[0], 0)
    pages = [environment.step("search[Black]").info]
    while environment.session.has_next:
        pages.append(environment.step("click[Next >]").info)
    assert [len(page["results"]) for page in pages] == [10] * 5 and pages[0]["total"] == 50
    assert len({asin for page in pages for asin, *_ in page["results"]}) == 50
    assert not environment.step("click[next >]").action_valid
    assert environment.step("click[< prev]").info["results"] == pages[3]["results"]
    assert environment.step("click[back to search]").info["page"] == "search"


def test_options_survive_a_sub_page_and_are_dropped_on_the_way_back_to_the_results(
    compact: WebshopSettings, tasks: list[Task]
) -> None:
    environment = WebshopEnvironment(compact)
    _open_first(environment, tasks[0], "waterproof boots")
    group, values = next(iter(environment.session.product.options.items()))
    assert environment.step(f"click[{group} {values[0]}]").observation == f"{group} {values[0]} selected"
    assert environment.step(f"click[{group} {values[1]}]").info["selected"] == {group: values[1]}
    assert environment.step("click[features]").info["page"] == "features"
    assert environment.step("click[back]").info["selected"] == {group: values[1]}
    assert environment.step("click[back]").info["selected"] == {}
    assert environment.session.page is Page.RESULTS


def test_both_styles_earn_the_same_reward_for_the_same_purchase(
    compact: WebshopSettings, full: WebshopSettings, tasks: list[Task]
) -> None:
    short, long = WebshopEnvironment(compact), WebshopEnvironment(full)
    rewards = set()
    for task in tasks[:40]:
        query = task.payload["goal"]["query"]
        _open_first(short, task, query)
        asin = short.session.product.asin
        bought = short.step("click[buy]")
        long.reset(task, 0)
        long.step(f"Thought: look for it\nAction: search[{query}]")
        long.step(f"Action: click[{asin}]")
        again = long.step("Thought: done\nAction: click[Buy Now]")
        assert (bought.reward, bought.success) == (again.reward, again.success)
        assert bought.action_mapped == again.action_mapped == "click[buy now]"
        rewards.add(bought.reward)
    assert len(rewards) > 3


def test_every_recorded_action_has_the_originals_effect_in_the_full_style(cases_dir: Path) -> None:
    rows = json.loads((cases_dir / "06-webshop-action-grammar/expected.json").read_text(encoding="utf-8"))
    assert len(rows) == 19
    clickable = {"buy now", "< prev", "b07xxxxxx1", "65x43\u00a0cm", "description", "i̇stanbul"}
    for row in rows:
        kind, *argument = row["effect"]
        parsed = STYLES["full"]().read(row["reply"])
        if parsed and parsed[0] == "click" and parsed[1] not in clickable:
            parsed = None
        wanted = " ".join(argument[0]) if kind == "search" else "".join(argument)
        assert parsed == (None if kind == "nothing" else (kind, wanted)), row


@pytest.mark.parametrize(
    ("reply", "full", "compact"),
    [
        ("click[buy now] because it fits", ("click", "buy now"), ("click", "buy now")),
        ("search[red shoes] click[buy now]", None, None),
        ("search[a [b] c]", None, None),
        ("search[red shoes]\nclick[buy now]", ("search", "red shoes"), ("search", "red shoes")),
        (" click[buy now]", None, ("click", "buy now")),
        ("\nclick[buy now]", None, ("click", "buy now")),
        ("click[ buy now ]", ("click", " buy now "), ("click", "buy now")),
        ("Action: click[buy now].", ("click", "buy now"), None),
        ("Action:\n click[buy now] or search[a]", ("click", "buy now"), None),
        ("action: search[a]b]", ("search", "a"), None),
        ("search[a]b]", ("search", "a]b"), ("search", "a]b")),
        ("ACTION: click[buy now]", None, None),
        ("Action: think[x]\nclick[buy now]", None, None),
        ("click[]", None, None),
        ("search[ ]", ("search", " "), None),
    ],
)
def test_actions_are_read_by_the_originals_pattern(
    reply: str, full: tuple[str, str] | None, compact: tuple[str, str] | None
) -> None:
    assert (STYLES["full"]().read(reply), STYLES["compact"]().read(reply)) == (full, compact)


def test_the_full_style_shows_the_visible_strings_of_the_page(full: WebshopSettings, tasks: list[Task]) -> None:
    environment = WebshopEnvironment(full)
    instruction = tasks[0].payload["goal"]["instruction"]
    assert environment.reset(tasks[0], 0) == f"WebShop [SEP] Instruction: [SEP] {instruction} [SEP] Search"
    results = environment.step("search[black]").observation.split(" [SEP] ")
    assert results[:5] == ["Instruction:", instruction, "Back to Search", "Page 1 (Total results: 50)", "Next >"]
    item = environment.step(f"click[{results[5]}]").observation
    assert item.endswith("Description [SEP] Features [SEP] Reviews [SEP] Buy Now")
    assert "click[buy now]" in environment.system_prompt()


def test_the_attributes_page_exists_only_where_the_settings_offer_it(full: WebshopSettings, tasks: list[Task]) -> None:
    shown = full.model_copy(update={"show_attributes": True})
    for settings, offered in ((full, False), (shown, True)):
        environment = WebshopEnvironment(settings)
        environment.reset(tasks[0], 0)
        asin = environment.step("search[boots]").info["results"][0][0]
        environment.step(f"click[{asin}]")
        assert environment.step("click[attributes]").action_valid is offered


def test_compact_pages_stay_short_and_use_few_words(compact: WebshopSettings, tasks: list[Task]) -> None:
    environment = WebshopEnvironment(compact)
    words: set[str] = set()
    for number, task in enumerate(tasks):
        observations = [environment.reset(task, 0)]
        for action in environment.expert(number, 0.2):
            observations.append(environment.step(action).observation)
        assert max(len(text.split()) for text in observations) <= 60
        words.update(word.strip(".,;:$") for text in observations for word in text.split())
    assert environment.system_prompt() == "webshop"
    assert len({word for word in words if not word.replace("-", "").isdigit()}) < 300


def test_a_task_with_a_missing_field_or_of_another_shop_is_refused(compact: WebshopSettings, tasks: list[Task]) -> None:
    environment = WebshopEnvironment(compact)
    payload = tasks[0].payload
    goal = {key: value for key, value in payload["goal"].items() if key != "price_upper"}
    with pytest.raises(EnvironmentFault, match="price_upper"):
        environment.reset(replace(tasks[0], payload=payload | {"goal": goal}), 0)
    with pytest.raises(EnvironmentFault, match="payload lacks 'shop'"):
        environment.reset(replace(tasks[0], payload={"goal": payload["goal"]}), 0)
    with pytest.raises(EnvironmentFault, match="belongs to catalogue other"):
        environment.reset(replace(tasks[0], payload=payload | {"shop": "other"}), 0)


def test_a_shop_that_was_not_prepared_or_was_changed_is_refused(tmp_path: Path) -> None:
    settings = WebshopSettings(cache_dir=str(tmp_path), product_count=20)
    with pytest.raises(EnvironmentFault, match="run the prepare stage"):
        WebshopEnvironment(settings)
    prepare(settings, "train", 5, seed=0)
    other = settings.model_copy(update={"product_count": 21})
    prepare(other, "train", 5, seed=0)
    assert len(list(tmp_path.iterdir())) == 2 and not list(tmp_path.glob(".*"))
    nouns = shop_folder(settings) / "title_nouns.json"
    nouns.write_text(nouns.read_text() + " ")
    _load_shop.cache_clear()
    with pytest.raises(EnvironmentFault, match="differs from its card"):
        WebshopEnvironment(settings)


def test_prepared_files_that_were_removed_or_changed_are_written_again_as_they_were(tmp_path: Path) -> None:
    settings = WebshopSettings(cache_dir=str(tmp_path / "cache"), product_count=20)
    folder = prepare_shop(settings)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    inode = folder.stat().st_ino
    restore_shop(settings)
    assert folder.stat().st_ino == inode, "what is whole is left alone"
    for harm in (
        lambda: shutil.rmtree(tmp_path / "cache"),
        lambda: (folder / "title_nouns.json").unlink(),
        lambda: (folder / "items_shuffle.json").write_text("[]"),
        lambda: (folder / "card.json").write_text("{"),
    ):
        harm()
        restore_shop(settings)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    WebshopEnvironment(settings)


def test_files_as_source_must_be_named_and_exist() -> None:
    with pytest.raises(ValidationError, match="products_file"):
        WebshopSettings(source="files")
    settings = WebshopSettings(
        source="files", goal_kind="synthetic", products_file="absent.json", attributes_file="absent.json"
    )
    with pytest.raises(EnvironmentFault, match=r"absent\.json"):
        prepare(settings, "train", 1, seed=0)


def test_the_original_files_load_through_the_same_code(shared_dir: Path, tmp_path: Path) -> None:
    data = shared_dir / "data"
    settings = WebshopSettings(
        prompt_style="full",
        source="files",
        goal_kind="synthetic",
        cache_dir=str(tmp_path),
        products_file=str(data / "webshop_items_shuffle_1000.rebuilt.json"),
        attributes_file=str(data / "webshop_items_ins_v2_1000.json"),
    )
    validation, train = prepare(settings, "validation", 200, seed=0), prepare(settings, "train", 5910, seed=0)
    assert [task.payload["index"] for task in validation] == list(range(200))
    assert [train[0].payload["index"], train[-1].payload["index"]] == [1000, 6909]
    environment = WebshopEnvironment(settings)
    solved = [_play(environment, task, 0, 0.0)[1] for task in validation[:30]]
    assert all(result.success for result in solved)
    human = settings.model_copy(
        update={"goal_kind": "human", "human_goals_file": str(data / "webshop_items_human_ins_13.partial.json")}
    )
    with pytest.raises(EnvironmentFault, match="files hold 13 human and 6910 synthetic .* goal_kind .* train_range"):
        prepare(human, "train", 50, seed=0)


def test_a_worker_needs_no_spacy(compact: WebshopSettings, tasks: list[Task]) -> None:
    program = (
        "import sys\n"
        "from rised.environments.webshop import WebshopEnvironment, WebshopSettings\n"
        f"environment = WebshopEnvironment(WebshopSettings(cache_dir={compact.cache_dir!r}))\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'spacy', 'torch', 'thefuzz'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "['thefuzz']\n", "of the three only what scores a purchase"


def test_a_step_after_the_purchase_or_before_reset_is_a_fault(compact: WebshopSettings, tasks: list[Task]) -> None:
    environment = WebshopEnvironment(compact)
    with pytest.raises(EnvironmentFault, match="reset"):
        environment.step("search[boots]")
    _open_first(environment, tasks[0], "boots")
    assert environment.step("click[buy]").done
    with pytest.raises(EnvironmentFault, match="after the purchase"):
        environment.step("click[buy]")
