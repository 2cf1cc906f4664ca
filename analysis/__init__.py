"""Tables, figures and the report, made from Parquet shards alone.

One module per table (``analysis.tables``) and per figure (``analysis.figures``); the report collects them. Nothing
here trains, generates or tags, and nothing imports torch: a reader who downloads shards needs only the ``analysis``
extra. Of the library only ``rised.records`` and, of ``rised.rubrics``, the vocabulary and what a profile is are used.
"""

from __future__ import annotations


class AnalysisError(RuntimeError):
    """The shards cannot be compared or read; the message says which runs and what to do."""
