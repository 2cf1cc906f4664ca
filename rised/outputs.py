"""What an experiment's DAG makes of its runs. Apart from ``experiment``: whoever plans the DAG loads nothing else."""

from __future__ import annotations

from typing import Annotated

from rised.config import DISTINCT, Settings, operational


class AnalysisSettings(Settings):
    """Modules of ``analysis/tables`` and ``analysis/figures`` by name, in the order of the report."""

    tables: Annotated[tuple[str, ...], DISTINCT] = operational(
        ("table2", "learning", "table9"), description="Tables of the experiment."
    )
    figures: Annotated[tuple[str, ...], DISTINCT] = operational(
        ("figure2", "figure4"), description="Figures of the experiment."
    )
