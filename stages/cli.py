"""What all stage programs share: common options, and errors as one clear message with exit code 1 or 2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rised.config import ConfigError
from rised.environments.base import EnvironmentFault
from rised.learner.errors import LearnerError
from rised.methods.errors import MethodError
from rised.models.errors import ModelError
from rised.records.errors import RecordError
from rised.records.text import printable
from rised.rubrics.base import RubricError

READERS_ERRORS = (ConfigError, RecordError, EnvironmentFault, MethodError, LearnerError, ModelError, RubricError)
"""Errors that say themselves what is wrong, where, and what to do: no traceback adds to them."""


def bare_parser(stage: str, description: str | None) -> argparse.ArgumentParser:
    """A parser without options. ``description``: the stage's docstring, printed by ``--help`` as it stands."""
    return argparse.ArgumentParser(
        prog=f"python -m stages.{stage}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def stage_parser(stage: str, description: str | None) -> argparse.ArgumentParser:
    """The same with --config, --set, --dry-run."""
    parser = bare_parser(stage, description)
    parser.add_argument("--config", type=Path, required=True, help="experiment file (YAML)")
    add_overrides(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and the plan only")
    return parser


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """--set."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b.c=value", help="override one key; may be given again"
    )


def add_method_and_seed(parser: argparse.ArgumentParser) -> None:
    """--method, --seed: which run of the experiment."""
    parser.add_argument("--method", required=True, help="method of the experiment (file of configs/methods)")
    parser.add_argument("--seed", type=int, required=True, help="run seed")


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage; errors meant for the reader are printed without a traceback and end with exit code 2."""
    try:
        main()
    except READERS_ERRORS as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        said = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
        print(f"error: {printable(said)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last committed step", file=sys.stderr)
        sys.exit(130)
