"""Figures are drawn from their CSV's numbers; the report is one file with every section and no outside resource."""

from __future__ import annotations

import html.parser
import re
import shutil
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from analysis.figures import figure2, figure4, style
from analysis.frames import Frames
from analysis.names import METHODS
from analysis.report import health, overview, page, provenance
from analysis.report.__main__ import main as report_main
from analysis.runs import find_experiment
from analysis.synthetic import JUDGE
from rised.records.compaction import compact


class Page(html.parser.HTMLParser):
    """Ids and the addresses of every resource of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.resources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in {"src", "srcset", "href", "data", "poster", "action"} and value:
                self.resources.append(value)


@pytest.fixture(scope="module")
def page_text(frames: Frames) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "SCREEN_DPI", 40)
        return page.render(frames)


@pytest.mark.parametrize("module", [figure2, figure4])
def test_each_figure_module_writes_png_pdf_and_csv_wide_enough_for_a_page(
    module: object, grid: Path, tmp_path: Path
) -> None:
    assert module.main(["--runs", str(grid), "--out", str(tmp_path)]) == 0  # type: ignore[attr-defined]
    name = module.__name__.rsplit(".", 1)[-1]  # type: ignore[attr-defined]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{suffix}" for suffix in (".png", ".pdf", ".csv", ".sources.json")
    }
    pixels = matplotlib.image.imread(tmp_path / f"{name}.png")
    assert pixels.shape[1] >= 1200 and pixels[..., :3].std() > 0.02
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 0


def test_a_dark_variant_is_written_on_request(grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "DPI", 40)
    assert figure2.main(["--runs", str(grid), "--out", str(tmp_path), "--theme", "dark"]) == 0
    light, dark = (matplotlib.image.imread(tmp_path / f"figure2{part}.png")[2, 2, :3] for part in ("", "-dark"))
    assert light.min() > 0.95 and dark.max() < 0.15


def test_equal_data_give_equal_images(frames: Frames) -> None:
    built = figure2.build(frames)
    assert style.png_bytes(built.draw(style.LIGHT), 50) == style.png_bytes(built.draw(style.LIGHT), 50)


def test_every_method_has_its_own_colour_and_marker() -> None:
    looks = [style.style_of(method, style.LIGHT) for method in METHODS]
    assert len({colour for colour, _ in looks}) == len({marker for _, marker in looks}) == len(METHODS)


def test_figure_2_draws_every_seed_thin_and_the_mean_of_finished_seeds_thick(frames: Frames) -> None:
    axis = figure2.draw(frames, style.LIGHT).axes[-1]
    colour, _ = style.style_of("rised", style.LIGHT)
    lines = [line for line in axis.lines if line.get_color() == colour]
    assert sorted(line.get_linewidth() for line in lines) == [0.8, 0.8, 2.8]
    thick = max(lines, key=lambda line: line.get_linewidth())
    rates = (
        frames.pass_rates.query("method == 'rised' and environment == 'overall'").groupby("step")["pass_rate"].mean()
    )
    assert np.allclose(thick.get_ydata(), rates.to_numpy())


def test_figure_4_accumulates_training_rollouts_that_demonstrate_the_rubric(frames: Frames) -> None:
    data = figure4.build(frames).frame
    series = data.query("method == 'rised' and seed == 0 and rubric_id == 'systematic_object_search'")
    run = frames.experiment.of("rised")[0]
    tags = run.reader.scan("tags", judge=JUDGE).to_pandas()
    shown = tags[(tags["rubric_id"] == "systematic_object_search") & (tags["state"] == "demonstrates")]
    assert series["cumulative"].iloc[-1] == len(shown)
    assert series["cumulative"].is_monotonic_increasing
    assert series["share"].between(0, 1).all()
    assert "repeats_failed_action" not in set(data["rubric_id"])


def test_figure_4_without_tags_says_so_instead_of_drawing_zeros(frames: Frames, tmp_path: Path) -> None:
    for method in ("grpo_64", "rised"):
        kinds = ["metrics", "rollouts", "timings", "validation"]
        compact(frames.experiment.of(method)[0].path, tmp_path / method / "seed-0", kinds=kinds)
    built = figure4.build(Frames(find_experiment(tmp_path)))
    assert built.frame.empty
    assert "RISED: no training tags, nothing to draw" in built.notes
    texts = [text.get_text() for axis in built.draw(style.LIGHT).axes for text in axis.texts]
    assert "no tags of this rubric" in texts


def test_the_report_needs_nothing_from_outside(page_text: str) -> None:
    resources = Page(page_text).resources
    assert resources
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in resources)
    assert not re.search(r"@import|url\(|https?://", page_text)


def test_the_report_holds_every_section_table_and_figure_once(page_text: str) -> None:
    ids = Page(page_text).ids
    sections = [
        "overview",
        "results",
        "learning-section",
        "dynamics",
        "rubrics",
        "time",
        "data-health",
        "provenance",
        "rollouts",
    ]
    parts = ["table2", "table2_intervals", "learning", "table9", "table9_cost", "health", "figure2", "figure4"]
    for name in [*sections, *parts]:
        assert ids.count(name) == 1, name
    assert "prefers-color-scheme: dark" in page_text
    assert page_text.count("data:image/png;base64,") == 4


def test_the_report_goes_into_a_folder_or_under_a_given_name(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.report.__main__.render", lambda frames, *chosen: frames.experiment.name)
    assert report_main(["--runs", str(grid), "--out", str(tmp_path / "folder")]) == 0
    assert report_main(["--runs", str(grid), "--out", str(tmp_path / "other" / "name.html")]) == 0
    assert (tmp_path / "folder" / "report.html").read_text() == "synthetic_grid"
    assert (tmp_path / "other" / "name.html").read_text() == "synthetic_grid"


def test_the_report_says_when_its_data_are_synthetic_and_which_runs_are_missing(page_text: str) -> None:
    assert "Nothing on this page is a result" in page_text
    assert "Round-robin Variance seed 1: unfinished at update 2 of 4" in page_text


def test_a_stored_rate_that_differs_from_its_episodes_is_reported(frames: Frames) -> None:
    assert "stored pass rates equal those counted" in health.disagreements(frames)[0]
    wrong = Frames(frames.experiment)
    rates = frames.stored_rates.copy()
    rates.loc[0, "pass_rate"] += 0.25
    wrong.__dict__["stored_rates"] = rates
    assert any("stored" in text and "counted" in text for text in health.disagreements(wrong))


def test_the_headline_claims_no_difference_when_the_interval_includes_zero(frames: Frames) -> None:
    same = Frames(frames.experiment)
    rows = frames.validation
    base = rows[rows["method"] == "grpo_64"]
    same.__dict__["validation"] = pd.concat([base, base.assign(method="rised")])
    text = overview.headline(same)
    assert "The interval includes 0: these runs do not tell the two methods apart" in text
    assert "2 seeds per method say next to nothing" in text


def test_without_the_baseline_the_headline_names_what_is_missing(grid: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(grid, tmp_path / "grid")
    shutil.rmtree(copy / "grpo_64")
    frames = Frames(find_experiment(copy))
    assert (
        overview.headline(frames) == "No comparison of the two methods: no finished run of GRPO-64 in this experiment."
    )
    assert overview.findings(frames)


def test_runs_that_were_not_made_alike_are_pointed_out(frames: Frames, grid: Path, tmp_path: Path) -> None:
    assert provenance.unexpected(frames.experiment) == []
    copy = shutil.copytree(grid, tmp_path / "grid")
    header = copy / "rised" / "seed-0" / "manifest.json"
    header.write_text(header.read_text().replace("0.0 synthetic", "0.1 synthetic"))
    assert provenance.unexpected(find_experiment(copy)) == [
        "The runs were not made alike: versions.python differ (see Provenance)"
    ]
