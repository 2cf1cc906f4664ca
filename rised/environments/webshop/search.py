"""Full-text search over the catalogue: Lucene's BM25 and English analysis, on bm25s.

The original searches a Lucene index (k1 = 0.9, b = 0.4, EnglishAnalyzer) of title, description, first bullet point
and options. The secret keywords of the original's web site (``<r>``, ``<a>``, ``<c>``, ``<q>``) are not offered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import bm25s
import numpy as np
import Stemmer

from rised.environments.webshop.catalogue import Product

TOP_RESULTS = 50
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
"""Lucene's English stop words."""

_TOKEN = re.compile(r"\d+(?:[.,]\d+)+|[^\W_]+(?:['’.:][^\W\d_]+)*")


def document_text(product: Product) -> str:
    """What the index holds of a product, as the original's document file."""
    options = ", and ".join(f"{group}: {', '.join(values)}" for group, values in product.options.items())
    first_bullet = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first_bullet, options)).lower()


class SearchIndex:
    """BM25 over products; ties go to the product that comes first in the file, as in Lucene."""

    def __init__(self, products: Sequence[Product]) -> None:
        self._stem = Stemmer.Stemmer("porter").stemWord
        self._asins = [product.asin for product in products]
        self._bm25 = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
        self._bm25.index([self.tokens(document_text(product)) for product in products], show_progress=False)
        self.search = lru_cache(maxsize=4096)(self._search)

    def tokens(self, text: str) -> list[str]:
        """Index terms: lower-cased words without possessive s and stop words, Porter-stemmed.

        Porter's rules leave nothing of the word "s", and bm25s takes the empty term for one of its own.
        """
        words = (re.sub(r"['’]s$", "", word) for word in _TOKEN.findall(text.lower()))
        stems = (self._stem(word) for word in words if word not in STOP_WORDS)
        return [stem for stem in stems if stem]

    def _search(self, query: str) -> tuple[str, ...]:
        """Product ids of the best 50 matches, best first; none when no word of the query is in the index."""
        terms = [term for term in self.tokens(query) if term in self._bm25.vocab_dict]
        if not terms:
            return ()
        scores = self._bm25.get_scores(terms)
        order = np.argsort(-scores, kind="stable")[:TOP_RESULTS]
        return tuple(self._asins[place] for place in order if scores[place] > 0.0)
