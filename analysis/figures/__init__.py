"""One module per figure: ``build(frames) -> BuiltFigure``, and ``main`` to run it alone.

``analysis.registry`` lists the modules for the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.style import Theme


@dataclass(frozen=True)
class BuiltFigure:
    """A figure ready to draw in either theme, and the frame behind it (what the CSV holds)."""

    name: str
    caption: str
    frame: pd.DataFrame
    draw: Callable[[Theme], Figure]
    notes: Sequence[str] = field(default_factory=tuple)
