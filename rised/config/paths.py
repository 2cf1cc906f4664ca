"""Paths: which results folders batch jobs can carry, and where shipped files are found from any working directory."""

from __future__ import annotations

import os
import re
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
