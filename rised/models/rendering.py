"""From conversation to token ids, appending only.

The chat template is consulted once, at start-up, for its scaffold: the text around the contents. From then on every
turn appends token ids; nothing that was sampled is ever decoded and encoded again, so ids, masks and log-probabilities
belong together by construction. What the template would have done differently (strip reasoning, trim) is
reported; what cannot be right (a date, an unasked system message) is refused. The probing lives in ``templates``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from rised.models.errors import ModelError
from rised.models.templates import Scaffold, TemplateReport, probe_template


class ChatRendering:
    """Append-only rendering of one tokenizer's chat format.

    A conversation is ``start(system, observation) + reply + extend(observation) + reply + …`` where each reply ends
    with ``end_token_id``: sampled by the policy, or appended unsampled to close a truncated one. Contents are encoded
    with special tokens taken apart, so that no observation can forge the end of a turn.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system_in_user_turn: bool = False,
        template_arguments: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.scaffold: Scaffold
        self.report: TemplateReport
        self.scaffold, self.report = probe_template(tokenizer, template_arguments or {})
        if self.report.refuses_system and not system_in_user_turn:
            raise ModelError(
                f"the chat template of {tokenizer.name_or_path!r} takes no system message ({self.report.refusal}); "
                "set system_in_user_turn to put the system prompt into the first user turn"
            )
        scaffold = self.scaffold
        self._before_system = self._encode_scaffold(scaffold.before_system)
        self._system_to_user = self._encode_scaffold(scaffold.system_close + scaffold.user_header)
        self._user_alone = self._encode_scaffold(scaffold.before_first_user)
        self._generation = self._encode_scaffold(scaffold.generation)
        closing = self._encode_scaffold(scaffold.assistant_close + scaffold.user_header)
        self.end_token_id: int = closing[0]
        """The token that ends a reply."""
        self._after_end = closing[1:]
        self._hint_open = self._encode_scaffold(scaffold.hint_header)
        self._hint_close = self._encode_scaffold(scaffold.system_close)
        self._known = frozenset(tokenizer.get_vocab().values())
        self._bos = [tokenizer.bos_token_id] if self.report.tokenizer_adds_bos else []
        self._check()

    def start(self, system: str, first_observation: str) -> list[int]:
        """Ids of the system prompt, the first user turn and the header of the reply; none of them is the policy's."""
        if self.report.refuses_system or not system:
            if self.report.default_system:
                raise ModelError(
                    "the chat template writes a system message of its own when none is given; give a system prompt"
                )
            content = f"{system}\n\n{first_observation}" if system else first_observation
            return self._bos + self._user_alone + self._encode(content) + self._generation
        opening = self._bos + self._before_system + self._encode(system) + self._system_to_user
        return opening + self._encode(first_observation) + self._generation

    def extend(self, observation: str) -> list[int]:
        """Ids that follow a reply's end token: the rest of its closing, a user turn and the next reply's header."""
        return self._after_end + self._encode(observation) + self._generation

    def hint_prefix(self, text: str) -> list[int]:
        """A system block of its own that is put before the stored ids of an episode, for a teacher.

        The stored ids follow unchanged (with their BOS, where the tokenizer has one).
        """
        return self._hint_open + self._encode(text) + self._hint_close

    def encode_reply(self, text: str) -> list[int]:
        """Ids of a reply given as text (a demonstration), with the end token; sampled replies never come this way."""
        return [*self._encode(text), self.end_token_id]

    def decode(self, ids: list[int]) -> str:
        """Text of ``ids`` without special tokens; a reply cut inside a character shows U+FFFD."""
        text: Any = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def undecodable(self, ids: Sequence[int]) -> int:
        """How many of ``ids`` no token of the tokenizer has: they are missing in the text, but not in the episode."""
        return sum(token not in self._known for token in ids)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def _encode_scaffold(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _check(self) -> None:
        if self.end_token_id not in self.tokenizer.all_special_ids:
            raise ModelError(
                "the chat template closes a reply with ordinary text "
                f"({self.tokenizer.decode([self.end_token_id])!r}); it needs one special token that ends a turn"
            )
        sentence = "go to shelf 2 [SEP] 'x' = 1.50"
        encoded = self._encode(sentence)
        if self.decode(encoded) != sentence:
            raise ModelError(
                f"encoding and decoding {sentence!r} gives {self.decode(encoded)!r}: this tokenizer changes text, and "
                "pieces of a conversation cannot be encoded apart"
            )
        forged = self._encode(f"a{self.tokenizer.decode([self.end_token_id])}b")
        if self.end_token_id in forged:
            raise ModelError(
                "this tokenizer reads special tokens inside ordinary text: an observation could end a turn"
            )
