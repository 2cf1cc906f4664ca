"""The gradient without an update is that of an update; the projection keeps inner products and never sees a matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_examples import learner, sequences, terms, tiny_model, weights

from rised.learner.errors import LearnerError
from rised.learner.gradients import cosine, count_sketch, flat, layer_count, layer_parameters, term_gradient
from rised.learner.settings import LearnerSettings
from rised.learner.types import Reduction

SETTINGS = LearnerSettings(micro_batch_tokens=128)


@pytest.mark.parametrize("reduction", list(Reduction))
def test_the_gradient_of_a_layer_is_the_one_an_update_would_take(reduction: Reduction) -> None:
    one = learner(gradient_clip=None)
    batch, rl = sequences(one.model), terms(reduction)[0]
    chosen = layer_parameters(one.model, [1])
    before = weights(one.model)
    found = term_gradient(one.model, batch, rl, chosen, SETTINGS, temperature=0.8)
    assert torch.equal(weights(one.model), before)
    assert all(parameter.grad is None for parameter in one.model.parameters())
    one.update(batch, [rl])
    for name, parameter in one.model.model.layers[1].named_parameters():
        torch.testing.assert_close(found[f"layers.1.{name}"], parameter.grad, rtol=1e-4, atol=1e-8)


def test_a_layer_holds_all_its_weights_and_all_layers_hold_neither_embedding_nor_head() -> None:
    model = tiny_model()
    layer, every = layer_parameters(model, [0]), layer_parameters(model)
    assert layer_count(model) == 2
    assert sum(p.numel() for p in layer.values()) == sum(p.numel() for p in model.model.layers[0].parameters())
    others = model.get_input_embeddings().weight.numel() + model.model.norm.weight.numel()
    assert sum(p.numel() for p in every.values()) == sum(p.numel() for p in model.parameters()) - others
    with pytest.raises(LearnerError, match="layers 0 to 1"):
        layer_parameters(model, [2])


def test_a_batch_without_signal_has_a_gradient_of_zero_and_no_cosine() -> None:
    model = tiny_model()
    silent = sequences(model, advantages=(0.0, None))
    found = flat(term_gradient(model, silent, terms()[0], layer_parameters(model, [0]), SETTINGS, temperature=0.8))
    assert not found.any()
    assert cosine(found, np.ones_like(found)) is None and cosine(np.ones(3), np.zeros(3)) is None
    assert cosine(np.ones(3), np.ones(3)) == 1.0 and cosine(np.ones(2), np.array([1.0, -1.0])) == 0.0


def test_a_term_that_needs_more_than_advantages_is_refused() -> None:
    model = tiny_model()
    with pytest.raises(LearnerError, match="reference_kl"):
        term_gradient(model, sequences(model), terms()[1], layer_parameters(model), SETTINGS, temperature=0.8)


def gradient(seed: int, mixed_with: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator) for name, shape in {"a": (40, 50), "b": (3000,)}.items()}
    return made if mixed_with is None else {name: 0.3 * made[name] + mixed_with[name] for name in made}


def test_the_projection_keeps_inner_products_within_its_own_error() -> None:
    """The error over 200 seeds has mean 0 and the standard deviation that the docstring gives."""
    first = gradient(1)
    second = gradient(2, mixed_with=first)
    exact = float(flat(first) @ flat(second))
    scale = float(np.linalg.norm(flat(first)) * np.linalg.norm(flat(second)))
    dimension = 256
    errors = [
        (float(count_sketch(first, dimension, seed) @ count_sketch(second, dimension, seed)) - exact) / scale
        for seed in range(200)
    ]
    expected = np.sqrt((1 + (exact / scale) ** 2) / dimension)
    assert abs(np.mean(errors)) < 4 * expected / np.sqrt(200)
    assert 0.8 < np.std(errors) / expected < 1.2


def test_the_projection_is_linear_and_depends_on_seed_and_names_but_not_on_the_order_of_weights() -> None:
    first, second = gradient(1), gradient(2)
    sketch = count_sketch(first, 64, 7)
    turned = dict(reversed(first.items()))
    np.testing.assert_allclose(count_sketch(turned, 64, 7), sketch, atol=1e-9)
    both = {name: first[name].double() + second[name].double() for name in first}
    np.testing.assert_allclose(count_sketch(both, 64, 7), sketch + count_sketch(second, 64, 7), atol=1e-4)
    assert np.abs(count_sketch(first, 64, 8) - sketch).max() > 1
    renamed = {f"x.{name}": tensor for name, tensor in first.items()}
    assert np.abs(count_sketch(renamed, 64, 7) - sketch).max() > 1


def test_the_projection_at_a_fixed_seed_is_pinned() -> None:
    """Another stream of random numbers would make the vectors of one run incomparable with those of another."""
    sketch = count_sketch({"w": torch.arange(1.0, 9.0)}, 4, 0)
    assert sketch.tolist() == [-4.0, 10.0, -9.0, 1.0]
