"""The command line that every table and figure module shares: ``--runs DIR --out DIR [--experiment NAME]``."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis import AnalysisError
from analysis.formatting import write_table
from analysis.frames import Frames
from analysis.runs import find_experiment
from analysis.sources import noted
from analysis.tables import BuiltTable
from rised.records.errors import RecordError


def parser(description: str) -> argparse.ArgumentParser:
    """The shared options; a module may add its own."""
    module = sys.modules["__main__"].__spec__  # None where a test calls a module's main
    made = argparse.ArgumentParser(prog=f"python -m {module.name}" if module else None, description=description)
    made.add_argument("--runs", type=Path, required=True, help="results folder, or one experiment in it")
    made.add_argument("--out", type=Path, required=True, help="folder for the files that are written")
    made.add_argument("--experiment", help="which experiment, where --runs holds several")
    return made


def run(
    make: Callable[[Frames, argparse.Namespace], Sequence[Path]],
    arguments: Sequence[str] | None,
    made: argparse.ArgumentParser,
    module: str = "",
) -> int:
    """Parse, load, make, print what was written; a wrong input ends with one message and exit code 1.

    ``module``: of the table or figure; what it was made from is then written beside it.
    """
    options = made.parse_args(arguments)
    try:
        with noted(module) as sources:
            frames = Frames(find_experiment(options.runs, options.experiment))
            paths = list(make(frames, options))
        if module:
            sources.title = made.description or module
            sources.experiment, sources.runs = frames.experiment.name, len(frames.experiment.runs)
            sources.files = [path.name for path in paths]
            paths.append(sources.write(options.out))
        for path in paths:
            print(path)
    except (AnalysisError, RecordError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def module_of(function: Callable[..., Any]) -> str:
    """Name of the table's or figure's module that a function is of, also where it runs as a program."""
    return Path(inspect.getfile(function)).stem


def run_tables(
    build: Callable[[Frames], Sequence[BuiltTable]], description: str, arguments: Sequence[str] | None = None
) -> int:
    """The command of a table module: each table as CSV, Markdown and LaTeX."""

    def make(frames: Frames, options: argparse.Namespace) -> list[Path]:
        return [path for table in build(frames) for path in write_table(table.printed, table.frame, options.out)]

    return run(make, arguments, parser(description), module_of(build))
