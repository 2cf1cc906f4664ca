"""The planner's count of a learner's memory, against what torch really keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from learner_examples import terms
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rised.learner.footprint import REDUCTION_BUCKET, activation_bytes, layer_activation_bytes, learner_parts
from rised.learner.learner import Learner
from rised.learner.settings import DeepSpeedLearnerSettings, LearnerSettings
from rised.learner.types import TrainingSequence
from rised.models.errors import ModelError
from rised.models.scoring import TokenScorer, lay_out
from rised.models.shape import ModelShape, shape_of_config

WIDTHS: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "attn_implementation": "sdpa",
}
FAMILIES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
KEPT_TOLERANCE = 0.05
"""Of the tensors that a pass keeps."""
PEAK_TOLERANCE = 0.15
"""Of the memory that an update takes at its peak."""


def model_of(family: str, **widths: Any) -> tuple[PreTrainedModel, ModelShape]:
    config_type, model_type = FAMILIES[family]
    config = config_type(**(WIDTHS | widths))
    return model_type(config).eval(), shape_of_config(config.to_dict())


def kept_bytes(model: PreTrainedModel, settings: LearnerSettings, tokens: int) -> int:
    """Bytes of everything but parameters that one forward pass saves for its backward pass, each storage once."""
    found: dict[int, torch.UntypedStorage] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    scorer = TokenScorer(model, recompute=settings.activation_checkpointing)
    inputs = lay_out([[1] * (tokens // 4)] * 4, [[False] + [True] * (tokens // 4 - 1)] * 4, layout=settings.layout)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=settings.autocast == "bfloat16"),
    ):
        logprobs = scorer(inputs, 1.0)
    assert logprobs.requires_grad
    return sum(storage.nbytes() for storage in found.values())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_parameters_are_counted_to_the_last_one(family: str, tied: bool) -> None:
    model, shape = model_of(family, tie_word_embeddings=tied)
    assert shape.parameters == model.num_parameters()


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("autocast", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("widths", [{}, {"intermediate_size": 64, "num_key_value_heads": 4, "hidden_size": 160}])
def test_what_a_layer_keeps_is_what_torch_keeps(
    family: str, autocast: str, layout: str, widths: dict[str, Any]
) -> None:
    settings = LearnerSettings(layout=layout, autocast=autocast)  # type: ignore[arg-type]
    tokens = 1024
    few, shape = model_of(family, **(widths | {"num_hidden_layers": 2}))
    more, _ = model_of(family, **(widths | {"num_hidden_layers": 3}))
    measured = kept_bytes(more, settings, tokens) - kept_bytes(few, settings, tokens)
    counted = tokens * layer_activation_bytes(shape, settings)
    counted += 2 * shape.layer_parameters if autocast == "bfloat16" else 0
    assert counted == pytest.approx(measured, rel=KEPT_TOLERANCE)


def test_recomputed_layers_keep_their_input_only() -> None:
    settings = LearnerSettings(activation_checkpointing=True)
    few, shape = model_of("qwen2", num_hidden_layers=2)
    more, _ = model_of("qwen2", num_hidden_layers=6)
    measured = kept_bytes(more, settings, 1024) - kept_bytes(few, settings, 1024)
    assert measured == 4 * 1024 * 4 * shape.hidden_size
    deep = shape.model_copy(update={"layers": 6})
    shallow = shape.model_copy(update={"layers": 2})
    assert activation_bytes(deep, settings, 1024) - activation_bytes(shallow, settings, 1024) == measured


class PeakOfTorch(TorchDispatchMode):
    """The most bytes of torch's storages that were alive at once, those of ``held`` tensors among them."""

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        for tensor in held:
            self._note(tensor)

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        self._alive[reference.cdata] = (reference, storage.nbytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor)
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return found


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_peak_of_a_real_update_is_the_sum_of_the_counted_parts(recompute: bool, layout: str) -> None:
    """The second update of a random model, in two micro-batches: moments and earlier gradients are there by then."""
    model, shape = model_of("qwen2", vocab_size=2048, tie_word_embeddings=True)
    reference = model_of("qwen2", vocab_size=2048, tie_word_embeddings=True)[0]
    tokens, length = 1024, 256
    settings = LearnerSettings(
        layout=layout,  # type: ignore[arg-type]
        micro_batch_tokens=tokens,
        logits_chunk_tokens=128,
        gradient_share_every=0,
        activation_checkpointing=recompute,
    )
    mask = (False, *(True,) * (length - 1))
    values = np.full(length - 1, -1.0)
    batch = [
        TrainingSequence("g", str(i), "e", (1, 2) * (length // 2), mask, values, values + 2 + i, None) for i in range(8)
    ]
    one = Learner(model, reference, settings, temperature=1.0)
    one.update(batch, terms()[:2])
    moments = [value for values in one.optimizer.state.values() for value in values.values()]
    with PeakOfTorch([*model.parameters(), *reference.parameters(), *moments]) as measured:
        one.update(batch, terms()[:2])
    parts = learner_parts(shape, settings, 1, tokens, with_reference=True)
    assert sum(part.bytes for part in parts) == pytest.approx(measured.peak, rel=PEAK_TOLERANCE)


def test_sharding_divides_what_it_shards() -> None:
    shape = model_of("qwen2")[1]

    def bytes_of(ranks: int, **settings: Any) -> dict[str, int]:
        chosen = DeepSpeedLearnerSettings(type="deepspeed", gradient_share_every=0, **settings)
        return {part.name: part.bytes for part in learner_parts(shape, chosen, ranks, 64, with_reference=True)}

    count = shape.parameters
    assert bytes_of(4, zero_stage=0)["optimiser"] == 8 * count
    assert bytes_of(4, zero_stage=1)["optimiser"] == 12 * count // 4
    assert bytes_of(4, zero_stage=1)["gradients"] == 4 * count
    assert bytes_of(4, zero_stage=2)["gradients"] == 4 * count // 4
    assert bytes_of(4, zero_stage=2)["weights"] == 4 * count
    assert bytes_of(4, zero_stage=3)["weights"] == 4 * count // 4
    assert bytes_of(4, zero_stage=3)["gathered weights"] == 4 * count
    assert bytes_of(4, zero_stage=3, reference="sharded")["reference"] == 4 * count // 4
    assert bytes_of(4, zero_stage=3, reference="offloaded")["reference"] == 0
    assert bytes_of(4, zero_stage=2, offload_optimizer=True)["optimiser"] == 0
    assert bytes_of(4, zero_stage=2, weights="bfloat16")["weights"] == 2 * count
    assert bytes_of(4, zero_stage=2)["reduction buffer"] == 4 * count
    large = shape.model_copy(update={"vocabulary_size": 10_000_000})
    settings = DeepSpeedLearnerSettings(type="deepspeed", gradient_share_every=0)
    parts = {part.name: part.bytes for part in learner_parts(large, settings, 4, 64, with_reference=False)}
    assert large.parameters > REDUCTION_BUCKET and parts["reduction buffer"] == 4 * REDUCTION_BUCKET


def test_a_model_of_another_family_is_refused_and_not_guessed() -> None:
    with pytest.raises(ModelError, match="'mamba2' is not known here, only of qwen2"):
        shape_of_config({"model_type": "mamba2"}, "x/config.json")
    with pytest.raises(ModelError, match="has no num_attention_heads"):
        shape_of_config({"model_type": "llama"}, "x/config.json")
