"""The report's rollout browser: its sample and its data, and the page in a real browser, offline, by keyboard, with
episodes that try to break out of the page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headless_browser import HeadlessBrowser, find_browser

from analysis import synthetic
from analysis.frames import Frames
from analysis.report import page, rollouts
from analysis.report.rollouts import browse
from analysis.report.selectors import RULES, rule
from analysis.runs import find_experiment
from analysis.synthetic import write_experiment
from rised.records.compaction import compact
from rised.records.text import printable
from rised.records.types import Rollout, Tag

HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'><!--<script> ]]> \u2028"
    " {{ 7 * 7 }} &lt;b&gt; \u202e \U0001f600 \"'`${window.broken = 3}"
)
LONG = "é" * 5000


def hostile_experiment(root: Path) -> Path:
    """Two methods whose episodes, tasks, prompts and verdicts hold the hostile text."""
    episodes, tags = synthetic.episodes, synthetic.tags

    def spoilt(*arguments: Any) -> list[Rollout]:
        return [
            replace(
                rollout,
                task_id=f"{rollout.task_id} {HOSTILE}",
                group_id=f"{rollout.group_id} {HOSTILE}",
                system_prompt=HOSTILE,
                steering_text=HOSTILE,
                final_observation=LONG,
                turns=tuple(
                    replace(t, observation=HOSTILE, action_raw=HOSTILE, action_mapped="look") for t in rollout.turns
                ),
            )
            for rollout in episodes(*arguments)
        ]

    def judged(found: Sequence[Rollout], rng: Any, updates: int) -> list[Tag]:
        return [replace(tag, reason=HOSTILE) for tag in tags(found, rng, updates)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "episodes", spoilt)
        patch.setattr(synthetic, "tags", judged)
        return write_experiment(root, seeds=(0, 1), updates=4, tasks=6)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    return Frames(find_experiment(hostile_experiment(tmp_path_factory.mktemp("hostile"))))


@pytest.fixture(scope="module")
def data(hostile: Frames) -> dict[str, Any]:
    """The page's data as a browser parses it."""
    found: dict[str, Any] = json.loads(browse(hostile).to_json())
    return found


@pytest.fixture(scope="module")
def report(hostile: Frames, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "SCREEN_DPI", 40)
        path.write_text(page.render(hostile), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadlessBrowser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no Chromium is installed (make browser-packages)")
    with HeadlessBrowser(executable, tmp_path_factory.mktemp("profile")) as running:
        yield running


# ---- the sample


def test_the_sample_is_the_same_every_time_and_covers_every_stratum(frames: Frames) -> None:
    first = browse(frames)
    assert first.to_json() == browse(frames).to_json()
    seen = {(r["method"], r["split"], r["environment"], r["outcome"]) for r in first.rollouts}
    for method in frames.experiment.methods:
        for environment in ("alfworld", "webshop", "dbbench"):
            for split in ("training", "validation"):
                assert (method, split, environment, "success") in seen and (
                    method,
                    split,
                    environment,
                    "failure",
                ) in seen
    assert {r["step"] for r in first.rollouts if r["split"] == "validation"} == {0, 2, 4}
    assert {r["step"] for r in first.rollouts if r["split"] == "training"} == {1, 3, 4}


def test_the_sample_is_bounded_in_rollouts_and_in_bytes(frames: Frames) -> None:
    assert len(browse(frames, most=10).rollouts) == 10
    small = browse(frames, most_bytes=20_000)
    assert 0 < len(json.dumps(small.rollouts)) <= 25_000
    assert len(small.rollouts) < len(browse(frames).rollouts) <= rollouts.MOST


def test_tags_stand_at_their_turn_and_candidates_in_the_order_of_choice(frames: Frames) -> None:
    found = browse(frames)
    run = frames.experiment.of("rised")[0]
    mine = next(r for r in found.rollouts if r["method"] == "rised" and r["split"] == "training" and r["tags"])
    stored = [t for t in run.reader.scan("tags", steps=[mine["step"]]).to_pylist() if t["rollout_id"] == mine["id"]]
    expected = {(t["rubric_id"], t["state"] or "error", t["evidence_turn"]) for t in stored if t["state"] != "absent"}
    assert {(found.rubrics[tag[0]][0], tag[1], tag[2]) for tag in mine["tags"]} == expected
    assert mine["tagged"] == len(stored)
    groups = found.steps[f"rised/{mine['step']}"]["groups"]
    orders = [group[3] for group in groups]
    chosen = [order for order in orders if order is not None]
    assert chosen == sorted(chosen) and orders[len(chosen) :] == [None] * (len(orders) - len(chosen))
    assert mine["group"] in {group[0] for group in groups}


def test_a_compacted_run_gives_the_same_sample_without_texts(frames: Frames, tmp_path: Path) -> None:
    run = frames.experiment.of("rised")[0]
    compact(run.path, tmp_path / "small" / "rised" / "seed-0")
    compact(run.path, tmp_path / "texts" / "rised" / "seed-0", full_rollouts=True)
    small, texts = (browse(Frames(find_experiment(tmp_path / name))) for name in ("small", "texts"))
    assert [r["id"] for r in small.rollouts] == [r["id"] for r in texts.rollouts] and small.rollouts
    assert [r["tags"] for r in small.rollouts] == [r["tags"] for r in texts.rollouts]
    assert not small.has_texts and texts.has_texts
    full = {r["id"]: r for r in browse(frames).rollouts}
    assert all(full[r["id"]]["turns"] == r["turns"] for r in texts.rollouts if r["id"] in full)


def test_a_compacted_run_quotes_its_last_update_where_that_is_kept(frames: Frames, tmp_path: Path) -> None:
    run = frames.experiment.of("rised")[0]
    compact(run.path, tmp_path / "rised" / "seed-0", last_texts=True)
    kept = {r["id"]: r for r in browse(Frames(find_experiment(tmp_path))).rollouts}
    full = {r["id"]: r for r in browse(frames).rollouts}
    last = max(r["step"] for r in kept.values() if r["split"] == "training")
    quoted = {name for name, r in kept.items() if r["turns"] is not None}
    assert quoted == {name for name, r in kept.items() if (r["split"], r["step"]) == ("training", last)}
    assert quoted & set(full)
    assert all(kept[name][part] == full[name][part] for name in quoted & set(full) for part in ("turns", "final"))


def test_every_selector_has_a_sentence() -> None:
    from rised.methods.registry import PIECES, piece_class

    piece_class("selector", "profile")
    assert set(RULES) == set(PIECES["selector"])
    config = {"method": {"selector": {"type": "profile", "redundancy_weight": 0.5, "redundancy": "max"}}}
    assert "score = similarity − 0.5 × redundancy" in rule(config) and "{" not in rule(config)
    assert rule({}) == "" and "invented" in rule({"method": {"selector": {"type": "invented"}}})


# ---- the data in the page


def test_nothing_in_the_data_can_end_the_script_element(report: Path, data: dict[str, Any]) -> None:
    text = report.read_text(encoding="utf-8")
    (embedded,) = re.findall(r'<script type="application/json" id="rollout-data">(.*?)</script>', text, re.DOTALL)
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert json.loads(embedded) == data
    assert data["rollouts"][0]["turns"][0][0] == printable(HOSTILE)
    assert "<script>window.broken" not in text


def test_the_policy_of_the_page_lets_its_own_script_run_and_no_other(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in text and "default-src &#39;none&#39;" in text
    assert "innerHTML" not in script and "document.write" not in script and "eval(" not in script


def test_long_texts_are_cut_and_say_so(data: dict[str, Any]) -> None:
    final = data["rollouts"][0]["final"]
    assert len(final) < 1700 and final.endswith("… [3,400 characters not shown]")


# ---- the page in a browser


COUNT = "document.getElementById('rollout-count').textContent"
HEAD = "document.querySelector('#rollout-detail h3').textContent"
SELECTED = (
    "[...document.querySelectorAll('#rollout-list li')].findIndex((e) => e.getAttribute('aria-selected') === 'true')"
)


def test_hostile_episodes_are_shown_as_text_and_run_nothing(browser: HeadlessBrowser, report: Path) -> None:
    browser.open(report)
    for index in range(5):
        browser.value(f"document.querySelectorAll('#rollout-list li')[{index}].click()")
        shown = browser.value("document.querySelector('#rollout-detail pre.action').textContent")
        assert shown == printable(HOSTILE) != HOSTILE
    assert browser.value("typeof window.broken") == "undefined"
    assert browser.value("document.querySelectorAll('#rollouts img, #rollouts script').length") == 2
    assert browser.value(HEAD).strip().startswith("ALFWorld")
    assert browser.troubles == []


def test_filters_leave_what_matches(browser: HeadlessBrowser, report: Path, data: dict[str, Any]) -> None:
    browser.open(report)
    everything = data["rollouts"]

    def states(rollout: dict[str, Any], rubric: str) -> set[str]:
        return {tag[1] for tag in rollout["tags"] if data["rubrics"][tag[0]][0] == rubric}

    rubric = data["rubrics"][0][0]
    cases: list[tuple[dict[str, str], list[dict[str, Any]]]] = [
        ({"environment": "webshop"}, [r for r in everything if r["environment"] == "webshop"]),
        (
            {"method": "rised", "outcome": "success"},
            [r for r in everything if (r["method"], r["outcome"]) == ("rised", "success")],
        ),
        ({"step": "4", "split": "training"}, [r for r in everything if (r["step"], r["split"]) == (4, "training")]),
        ({"rubric": rubric}, [r for r in everything if states(r, rubric)]),
        ({"rubric": rubric, "verdict": "violates"}, [r for r in everything if "violates" in states(r, rubric)]),
        ({"rubric": rubric, "verdict": "absent"}, [r for r in everything if r["tagged"] and not states(r, rubric)]),
        ({"stop": "turn_limit"}, [r for r in everything if r["stop"] == "turn_limit"]),
        ({"text": "ALFWORLD-train"}, [r for r in everything if "alfworld-train" in r["task"]]),
        ({"text": "no such words"}, []),
    ]
    for chosen, expected in cases:
        browser.value("document.getElementById('rollout-reset').click()")
        for name, value in chosen.items():
            browser.choose(name, value)
        assert browser.value(COUNT) == f"{len(expected)} of {len(everything)} rollouts", chosen
    assert "No rollout of the sample matches" in browser.value("document.getElementById('rollout-detail').textContent")
    browser.value("document.getElementById('rollout-reset').click()")
    browser.choose("selected", "yes")
    chosen_groups = {
        (name, group[0]) for name, step in data["steps"].items() for group in step["groups"] if group[3] is not None
    }
    training = [r for r in everything if r["split"] == "training"]
    kept = [r for r in training if (f"{r['method']}/{r['step']}", r["group"]) in chosen_groups]
    assert browser.value(COUNT).startswith(f"{len(kept)} of") and 0 < len(kept) < len(training)
    assert browser.troubles == []


def test_the_browser_is_used_by_keyboard_alone(browser: HeadlessBrowser, report: Path) -> None:
    browser.open(report)
    browser.value("document.getElementById('rollout-reset').focus()")
    browser.press("Tab")
    assert browser.value("document.activeElement.id") == "rollout-list"
    before = browser.value(HEAD)
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    assert browser.value(SELECTED) == 3
    assert browser.value("document.getElementById('rollout-list').getAttribute('aria-activedescendant')") == "rollout-3"
    browser.press("End")
    assert browser.value(SELECTED) == browser.value("document.querySelectorAll('#rollout-list li').length") - 1
    assert browser.value(HEAD) != before
    browser.press("Enter")
    assert browser.value("document.activeElement.id") == "rollout-detail"
    browser.press("Escape")
    assert browser.value("document.activeElement.id") == "rollout-list"
    browser.press("Home")
    assert browser.value(SELECTED) == 0 and browser.value(HEAD) == before


def test_a_verdict_leads_to_its_turn_and_a_candidate_to_its_rollout(browser: HeadlessBrowser, report: Path) -> None:
    browser.open(report)
    browser.choose("split", "training")
    browser.choose("method", "rised")
    browser.choose("verdict", "demonstrates")
    turn = browser.value(
        "(() => { const b = document.querySelector('#rollout-detail [data-turn]'); b.click();"
        " return b.dataset.turn; })()"
    )
    assert browser.value("document.activeElement.id") == f"turn-{turn}"
    assert browser.value(f"document.querySelectorAll('#turn-{turn} .chip.demonstrates').length") >= 1
    before = browser.value("location.hash")
    browser.value("[...document.querySelectorAll('[data-group]')].at(-1).click()")
    assert browser.value("location.hash") != before
    assert browser.value("document.querySelectorAll('tr.own').length") == 1


def test_an_address_opens_its_rollout(browser: HeadlessBrowser, report: Path, data: dict[str, Any]) -> None:
    wanted = data["rollouts"][-1]
    browser.open(report)
    encoded = browser.value(f"encodeURIComponent({json.dumps(wanted['id'])})")
    browser.open(report, f"#rollout={encoded}")
    assert browser.value(SELECTED) == len(data["rollouts"]) - 1
    assert wanted["methodName"] in browser.value(HEAD)


CONTRAST = """
(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (colour) => { const [r, g, b] = colour.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const background = (e) => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = {};
  for (const selector of ['body', 'nav a', '.muted', '.chip.demonstrates', '.chip.violates', 'pre.observation',
      'pre.action', '.filters label', '.filters select', '#rollout-list li', '.outcome', '.notes', 'code',
      'button.link', '.banner']) {
    const e = document.querySelector(selector); if (!e) continue;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(background(e))].sort((x, y) => y - x);
    found[selector] = (a + 0.05) / (b + 0.05);
  }
  return found;
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_legible_in_light_and_in_dark_and_no_wider_than_the_window(
    browser: HeadlessBrowser, report: Path, dark: bool
) -> None:
    browser.open(report, dark=dark)
    ratios = browser.value(CONTRAST)
    assert len(ratios) >= 13
    assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 4.5} == {}
    background = [int(v) for v in re.findall(r"\d+", browser.value("getComputedStyle(document.body).backgroundColor"))]
    assert (max(background) < 60) == dark
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert len(browser.screenshot("#rollouts")) > 20_000
    assert browser.troubles == []
