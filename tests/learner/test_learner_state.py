"""The learner's state: byte-equal resume, refusals, and the Hugging Face export."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learner_examples import VOCABULARY_SIZE, learner, measures, sequences, terms, tiny_model, weights
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from rised.learner.errors import LearnerError
from rised.learner.state import describe, read_weights

FILES = ("policy.safetensors", "optimizer.safetensors", "learner.json")


@pytest.mark.parametrize("tied", [True, False])
def test_save_load_update_equals_update_update_byte_for_byte(tmp_path: Path, tied: bool) -> None:
    batches = [sequences(tiny_model(), seed=seed) for seed in (1, 2, 3)]
    straight = learner(tiny_model(tied=tied), warmup_updates=5, weight_decay=0.01)
    for batch in batches[:2]:
        straight.update(batch, terms())
    straight.save_state(tmp_path / "middle")
    expected = straight.update(batches[2], terms())
    straight.save_state(tmp_path / "straight")

    resumed = learner(tiny_model(seed=5, tied=tied), warmup_updates=5, weight_decay=0.01)
    resumed.load_state(tmp_path / "middle")
    assert measures(resumed.update(batches[2], terms())) == measures(expected)
    resumed.save_state(tmp_path / "resumed")
    for name in FILES:
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


def test_a_state_before_the_first_update_resumes_too(tmp_path: Path) -> None:
    one = learner()
    one.save_state(tmp_path)
    other = learner(tiny_model(seed=5))
    other.load_state(tmp_path)
    batch = sequences(one.model)
    one.update(batch, terms())
    other.update(batch, terms())
    assert torch.equal(weights(one.model), weights(other.model))


def test_empty_updates_are_part_of_the_state(tmp_path: Path) -> None:
    one = learner(warmup_updates=4)
    one.update([], terms())
    one.save_state(tmp_path)
    other = learner(warmup_updates=4)
    other.load_state(tmp_path)
    assert (other.updates, other.empty_updates) == (1, 1)


def test_a_damaged_missing_or_foreign_state_is_refused_with_its_path(tmp_path: Path) -> None:
    one = learner()
    with pytest.raises(LearnerError, match="absent"):
        one.load_state(tmp_path / "absent")
    one.save_state(tmp_path)
    with pytest.raises(LearnerError, match="belongs to another model"):
        learner(tiny_model(tied=False)).load_state(tmp_path)
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-100])
    before = weights(one.model)
    with pytest.raises(LearnerError, match="cannot be read"):
        one.load_state(tmp_path)
    assert torch.equal(weights(one.model), before)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LearnerError, match="could not be written"):
        learner().save_state(tmp_path / "file")


def test_the_export_loads_in_transformers_and_names_the_tied_head(tmp_path: Path) -> None:
    vocabulary = {f"t{i}": i for i in range(VOCABULARY_SIZE)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="t0")), unk_token="t0"
    )
    one = learner()
    one.update(sequences(one.model), terms())
    taken = one.snapshot()
    assert taken is not None
    describe(tmp_path, one.model, tokenizer)
    taken.export(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.equal(saved["lm_head.weight"], saved["model.embed_tokens.weight"])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert torch.equal(weights(loaded), weights(one.model))
    assert (tmp_path / "tokenizer.json").is_file()


def test_a_snapshot_does_not_change_with_the_weights_it_was_taken_of(tmp_path: Path) -> None:
    one = learner()
    one.update(sequences(one.model, seed=1), terms())
    one.save_state(tmp_path / "at_once")
    taken = one.snapshot()
    assert taken is not None
    one.update(sequences(one.model, seed=2), terms())
    taken.write(tmp_path / "later")
    for name in FILES:
        assert (tmp_path / "later" / name).read_bytes() == (tmp_path / "at_once" / name).read_bytes(), name


def test_weights_are_read_as_they_were_handed_over(tmp_path: Path) -> None:
    one, player = learner(), tiny_model()
    one.update(sequences(one.model, seed=1), terms())
    one.save_state(tmp_path)
    read_weights(tmp_path / "policy.safetensors", player, "float32")
    assert torch.equal(weights(player), weights(one.model))
    read_weights(tmp_path / "policy.safetensors", player, "bfloat16")
    assert torch.equal(weights(player), weights(one.model).bfloat16().float())
    with pytest.raises(LearnerError, match="belongs to another model"):
        read_weights(tmp_path / "policy.safetensors", tiny_model(tied=False), "float32")
