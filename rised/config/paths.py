"""Which results folders can be used: those that Slurm and submitit carry through unchanged."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rised.config.errors import ConfigError

_SLURM_PATTERN = re.compile(r"%([0-9]|[AabJjNnstux])")
"""What Slurm and submitit replace in names of log files (``%j``, ``%5t``); other letters after ``%`` stay."""
_BREAKS = {"\n": "line feed", "\r": "carriage return"}


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
