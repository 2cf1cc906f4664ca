"""Paths: what results folders batch jobs can carry, where shipped files are found, options that name a path."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from rised.config.errors import ConfigError

_SLURM_PATTERN = re.compile(r"%([0-9]|[AabJjNnstux])")
"""What Slurm and submitit replace in names of log files (``%j``, ``%5t``); other letters after ``%`` stay."""
_BREAKS = {"\n": "line feed", "\r": "carriage return"}

CHECKOUT = Path(__file__).resolve().parents[2]


def shipped(path: Path | str) -> Path:
    """A relative path of the checkout (``configs``, ``data``, ``slurm``) for a program that runs in another directory.

    What the working directory holds comes first; a path that is in neither stays as it is.
    """
    here = Path(path)
    return CHECKOUT / here if not here.exists() and (CHECKOUT / here).exists() else here


class NamedPath(argparse.Action):
    """A path that was given by its place up to version 0.1 and is now given by name (:func:`add_named_path`)."""

    def __call__(self, parser: object, namespace: argparse.Namespace, value: object, option: str | None = None) -> None:
        if value is None:
            return
        if option is None:
            name = self.dest.replace("_", "-")
            print(
                f"note: write --{name} {value}; the form without --{name} ends with the next version", file=sys.stderr
            )
        setattr(namespace, self.dest, value)


def add_named_path(parser: argparse.ArgumentParser, name: str, help: str) -> None:
    """``--name PATH``; for this version its place will do, with a note. Ask :func:`required` for it after parsing."""
    dest = name.replace("-", "_")
    parser.add_argument(f"--{name}", type=Path, action=NamedPath, metavar="PATH", help=help)
    parser.add_argument(dest, type=Path, nargs="?", action=NamedPath, help=argparse.SUPPRESS)


def required(parser: argparse.ArgumentParser, options: argparse.Namespace, name: str) -> Path:
    """The path of :func:`add_named_path`; ends the program where it is missing."""
    found: Path | None = getattr(options, name.replace("-", "_"))
    if found is None:
        parser.error(f"the following arguments are required: --{name}")
    return found


def check_results_path(path: Path | str) -> Path:
    """The path itself, or :class:`ConfigError` naming the character that batch jobs cannot carry.

    Spaces, quotes, ``$``, ``;``, ``#``, tabs, a leading dash and any language are fine.
    """
    text = os.fspath(path)
    advice = f"in the results path {text!r}: choose a folder without it"
    if "\\" in text:
        raise ConfigError(f"backslash '\\' {advice} (Slurm drops the job without a log)")
    for character, name in _BREAKS.items():
        if character in text:
            raise ConfigError(f"line break ({name}) {advice} (sbatch refuses it)")
    match = _SLURM_PATTERN.search(text)
    if match:
        raise ConfigError(f"'{match.group(0)}' {advice} (Slurm replaces it, so that logs land in another folder)")
    return Path(path)
