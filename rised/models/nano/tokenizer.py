"""A byte-level BPE tokenizer trained on the environments' own transcripts.

Digits stand alone (numbers of several digits as one token cannot be copied digit by digit), words keep their leading
space, and the special tokens are those of the chat template. Saved as an ordinary Hugging Face tokenizer directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [PAD, END, SYSTEM, USER, ASSISTANT]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_PIECES = r" ?\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]|\s"


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Train on ``texts`` and return the tokenizer with its chat template; at most ``vocabulary_size`` tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer's files into ``folder``."""
    tokenizer.save_pretrained(str(folder))


def spaced_variants(tokenizer: PreTrainedTokenizerFast) -> list[tuple[int, int]]:
    """Pairs (id of "word", id of " word") of which both are single tokens."""
    vocabulary = tokenizer.get_vocab()
    return [(index, vocabulary["Ġ" + word]) for word, index in vocabulary.items() if "Ġ" + word in vocabulary]
