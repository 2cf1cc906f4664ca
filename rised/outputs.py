"""What an experiment's DAG makes of its runs. Apart from ``experiment``: whoever plans the DAG loads nothing else."""

from __future__ import annotations

from rised.config import Settings, operational


class AnalysisSettings(Settings):
    """Modules of ``analysis/tables`` and ``analysis/figures`` by name, in the order of the report."""

    tables: tuple[str, ...] = operational(("table2", "learning", "table9"), description="Tables of the experiment.")
    figures: tuple[str, ...] = operational(("figure2", "figure4"), description="Figures of the experiment.")
