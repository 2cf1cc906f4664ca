"""The command line of the figure modules: PNG, PDF and the CSV behind them, on request a PNG for dark pages."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis import command
from analysis.figures import BuiltFigure, style
from analysis.frames import Frames


def parser(description: str) -> argparse.ArgumentParser:
    """The shared options and the theme."""
    made = command.parser(description)
    made.add_argument(
        "--theme",
        choices=["light", "dark"],
        default="light",
        help="dark: also write <name>-dark.png (default: %(default)s)",
    )
    return made


def run(
    build: Callable[[Frames, argparse.Namespace], BuiltFigure],
    arguments: Sequence[str] | None,
    made: argparse.ArgumentParser,
) -> int:
    """Build one figure and write its files."""

    def make(frames: Frames, options: argparse.Namespace) -> list[Path]:
        built = build(frames, options)
        paths = style.write_figure(built.name, built.draw(style.LIGHT), built.frame, options.out)
        if options.theme == "dark":
            paths.append(options.out / f"{built.name}-dark.png")
            paths[-1].write_bytes(style.png_bytes(built.draw(style.DARK)))
        return paths

    return command.run(make, arguments, made, command.module_of(build))
