"""The exception of the models room."""

from __future__ import annotations


class ModelError(RuntimeError):
    """A model, tokenizer or chat template cannot be used as configured; the message says why and what to do."""
