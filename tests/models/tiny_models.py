"""Small random models and tokenizers for tests: nano-shaped Qwen2 and Llama, a BPE whose merges cross boundaries."""

from __future__ import annotations

import functools

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config
from transformers import Qwen2ForCausalLM as Qwen2

NANO_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHATML_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NANO_SPECIALS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHATML_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "hello hello hello the shelf the shelf 1 the shelf 2 Nothing happens. Nothing happens.",
    "click[buy now] click[back] search[red shoes] hello world \n\nguess 50 higher lower right",
    "go to shelf 1 take apple 1 from shelf 1 put apple in/on fridge 1 \U0001f600 \U0001f680",
] * 20


@functools.cache
def tokenizer(style: str = "nano") -> PreTrainedTokenizerFast:
    """Byte-level BPE without pre-splitting at words, so that merges cross every boundary of a reply."""
    specials = NANO_SPECIALS if style == "nano" else CHATML_SPECIALS
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=6,
    )
    bpe.train_from_iterator(TEXTS, trainer)
    end = "<|end|>" if style == "nano" else "<|im_end|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=end,
        pad_token=specials[0],
        bos_token=None if style == "nano" else "<|endoftext|>",
        additional_special_tokens=[token for token in specials if token != end],
        chat_template=NANO_TEMPLATE if style == "nano" else CHATML_TEMPLATE,
    )


def qwen2(seed: int = 0, hidden: int = 64, layers: int = 2, vocabulary: int = 420) -> PreTrainedModel:
    """Random Qwen2 in float32 with weights large enough that argmax is decided."""
    return _scaled(
        Qwen2(
            Qwen2Config(
                vocab_size=vocabulary,
                hidden_size=hidden,
                intermediate_size=3 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=1024,
                tie_word_embeddings=True,
                attn_implementation="sdpa",
            )
        ),
        seed,
    )


def llama(seed: int = 0, vocabulary: int = 420) -> PreTrainedModel:
    """Random Llama with grouped queries and an untied head."""
    return _scaled(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=1024,
                attn_implementation="sdpa",
            )
        ),
        seed,
    )


def _scaled(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(0.15 * torch.randn(parameter.shape, generator=generator))
    return model.eval()
