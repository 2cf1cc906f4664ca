"""Builds the parts and puts them into the template. Images are embedded in a light and a dark variant."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis import scale
from analysis.figures import style
from analysis.frames import Frames
from analysis.registry import FIGURES, TABLES, build_figures, build_tables, sections
from analysis.report import cost, health, overview, provenance
from analysis.report.made_from import made_from
from analysis.report.rollouts import Browser, browse
from analysis.sources import Sources
from rised.rubrics.vocabulary import load_vocabulary

HERE = Path(__file__).parent
SCREEN_DPI = 150
"""1,800 px wide: sharp at the page's width, and half the size of the published file."""


def render(
    frames: Frames,
    tables: Sequence[str] = TABLES,
    chosen_figures: Sequence[str] = FIGURES,
    sources: Sequence[Sources] = (),
) -> str:
    """The whole page as text, with the tables and figures of the named modules; ``sources``: what they were made from,
    where that is known."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = build_figures(frames, chosen_figures)
    shared, differing = provenance.header_entries(frames.experiment)
    settings, own_settings = provenance.config_entries(frames.experiment)
    browser = browse(frames)
    script = (HERE / "browser.js").read_text(encoding="utf-8")
    return environment.get_template("template.html.j2").render(
        experiment=frames.experiment,
        scale=scale.describe(frames.experiment),
        tiles=overview.tiles(frames),
        headline=overview.headline(frames),
        findings=overview.findings(frames),
        gaps=frames.left_out() + provenance.unexpected(frames.experiment),
        tables={name: [table.printed for table in built] for name, built in build_tables(frames, tables).items()},
        sections=sections(tables, chosen_figures),
        figures=figures,
        images={
            name: {
                theme.name: _data_uri(style.png_bytes(figure.draw(theme), SCREEN_DPI))
                for theme in (style.LIGHT, style.DARK)
            }
            for name, figure in figures.items()
        },
        health=health.health_table(frames),
        stop_bars=health.stop_bars(frames),
        stop_words=health.STOP_WORDS,
        shared=shared,
        settings=settings,
        own_settings=own_settings,
        description=provenance.description(frames.experiment),
        differing=differing,
        vocabulary_hash=load_vocabulary().hash,
        software=provenance.software(),
        sources=made_from(sources) if sources else None,
        run_costs=cost.cost_table(frames),
        browser=browser,
        browser_note=_browser_note(browser),
        browser_json=Markup(browser.to_json()),
        browser_script=Markup(script),
        policy=_policy(script),
        synthetic=any(run.header.get("synthetic") is True for run in frames.experiment.runs),
    )


def _policy(script: str) -> str:
    """Content security policy: nothing is loaded, and no script runs but the page's own, whatever an episode holds."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _browser_note(browser: Browser) -> str:
    text = (
        f"A sample of {len(browser.rollouts):,} of the {browser.stored:,} rollouts of the first, the middle and the "
        "last stored step of validation and training, first seed of each method. It is drawn with a fixed seed, every "
        "environment and outcome in turn, and so shows kinds of behaviour, not how frequent they are."
    )
    return text if browser.has_texts else f"{text} These runs keep no texts; the full run folders have them."


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
