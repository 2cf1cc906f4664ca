"""What a chat template does, found by rendering probes.

The scaffold (the text around contents) is cut out of a rendered conversation of marker words. The report says where
re-rendering would break "the next prompt starts with what was sampled", and what the template adds unasked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from rised.models.errors import ModelError

SYSTEM, USER, REPLY, NEXT, SECOND, LAST = (
    f"rised{word}probe" for word in ("sys", "one", "two", "three", "four", "five")
)


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Texts between the contents of a conversation; each ``*_close`` begins with the token that ends a turn."""

    before_system: str
    hint_header: str
    """Header of a leading block without BOS: the system header, or the user header if there is no system role."""
    system_close: str
    before_first_user: str
    """All that precedes the first user content when there is no system message."""
    user_header: str
    generation: str
    """Closes the user turn and opens the reply, with whatever the template prefills."""
    assistant_close: str


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """Properties of a template that decide how it may be used."""

    prefix_holds: tuple[bool, bool]
    """Whether re-rendering after the first and second reply (with thoughts) starts with what was there before."""
    prefix_holds_with_spaces: bool
    """The same for a reply with leading and trailing spaces; False if the template trims."""
    default_system: bool
    """A system message that nobody wrote appears when none is given."""
    refuses_system: bool
    refusal: str
    prefill: str
    """Text that the template puts at the start of a reply (``<think>``): prompt, not the policy's."""
    template_has_bos: bool
    tokenizer_adds_bos: bool
    """True if the tokenizer would add a BOS and the template has none; rendering then puts exactly one."""

    @property
    def notes(self) -> list[str]:
        """What a reader of the run should know, one sentence each."""
        notes = []
        if not all(self.prefix_holds):
            notes.append("the template rewrites earlier replies; they are kept here as they were sampled")
        if not self.prefix_holds_with_spaces:
            notes.append("the template trims contents; spaces are kept here")
        if self.prefill:
            notes.append(f"the template opens each reply with {self.prefill!r}; it is prompt, not the policy's")
        if self.refuses_system:
            notes.append("the template takes no system message; the system prompt stands in the first user turn")
        return notes


def probe_template(tokenizer: PreTrainedTokenizerBase, arguments: dict[str, Any]) -> tuple[Scaffold, TemplateReport]:
    """Scaffold and report of the tokenizer's chat template; raises :class:`ModelError` if it cannot be used."""
    if not tokenizer.chat_template:
        raise ModelError(f"{tokenizer.name_or_path!r} has no chat template; add chat_template.jinja to its directory")
    probe = _Probe(tokenizer, arguments)
    probe.refuse_dates()
    plain = _turns(USER, REPLY, NEXT)
    before_first_user, to_reply, to_next, generation = _between(probe.render(plain), [USER, REPLY, NEXT])
    refusal = ""
    try:
        with_system = probe.render([{"role": "system", "content": SYSTEM}, *plain])
        before_system, system_to_user, *_ = _between(with_system, [SYSTEM, USER, REPLY, NEXT])
    except ModelError as error:
        refusal = str(error)
    end, assistant_close, user_header = _split_turn_end(tokenizer, to_next)
    has_bos = bool(tokenizer.bos_token) and before_first_user.startswith(tokenizer.bos_token)
    # Some tokenizers name the turn's opening token as BOS (SmolLM2); then it belongs to the header.
    bos = tokenizer.bos_token if has_bos and not user_header.startswith(tokenizer.bos_token) else ""
    if refusal:
        before_system, system_close, default_system = "", assistant_close, end in before_first_user
        hint_header = user_header
    else:
        if end in before_system:
            raise ModelError(
                "the chat template writes a system message of its own before the given one; remove it from the template"
            )
        _, system_close, _ = _split_turn_end(tokenizer, system_to_user)
        default_system = before_first_user.removeprefix(bos) != user_header
        hint_header = before_system.removeprefix(bos)
    scaffold = Scaffold(
        before_system, hint_header, system_close, before_first_user, user_header, generation, assistant_close
    )
    thinking = _turns(USER, f"<think>plan</think>{REPLY}", NEXT, f"<think>more</think>{SECOND}", LAST)
    spaced = _turns(USER, f"  {REPLY}  ", NEXT)
    report = TemplateReport(
        prefix_holds=(probe.prefix_holds(thinking, 1), probe.prefix_holds(thinking, 3)),
        prefix_holds_with_spaces=probe.prefix_holds(spaced, 1, ignored=generation.removeprefix(to_reply)),
        default_system=default_system,
        refuses_system=bool(refusal),
        refusal=refusal,
        prefill=generation.removeprefix(to_reply) if generation != to_reply else "",
        template_has_bos=has_bos,
        tokenizer_adds_bos=not has_bos and _adds_bos(tokenizer),
    )
    return scaffold, report


class _Probe:
    """Renders conversations with the tokenizer's template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, arguments: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._arguments = arguments

    def render(self, messages: Sequence[dict[str, str]], generation_prompt: bool = True, **more: Any) -> str:
        arguments = self._arguments | more
        try:
            text: Any = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generation_prompt, **arguments
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise ModelError(f"the chat template fails: {error}") from error
        return str(text)

    def refuse_dates(self) -> None:
        """Prompts must not depend on the day: a run resumed after midnight would see others."""
        days = [self.render(_turns(USER), strftime_now=lambda _, day=day: day) for day in ("day-one", "day-two")]
        if days[0] != days[1]:
            raise ModelError(
                "the chat template writes today's date into the prompt, so a resumed run would see other prompts; "
                "fix the date in the template or through template_arguments"
            )

    def prefix_holds(self, messages: list[dict[str, str]], reply: int, ignored: str = "") -> bool:
        """Whether prompt + reply ``messages[reply]``, as sampled, begins the rendering of the conversation so far."""
        prompt = self.render(messages[:reply])
        prompt = prompt.removesuffix(ignored) if ignored else prompt
        return self.render(messages[: reply + 2]).startswith(prompt + messages[reply]["content"])


def _turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(contents)]


def _between(text: str, markers: Sequence[str]) -> list[str]:
    """The texts before, between and after the markers, which must appear once each and in order."""
    pieces = re.split("|".join(map(re.escape, markers)), text)
    found = re.findall("|".join(map(re.escape, markers)), text)
    if found != list(markers):
        raise ModelError(f"the chat template shows {found} of the contents {list(markers)}")
    return pieces


def _split_turn_end(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[str, str, str]:
    """Split "close of one turn, header of the next" at the special token that opens the header.

    Returns the end token's text, the close (with it) and the header. Without a special header token the header is
    all that follows the end token.
    """
    specials = sorted((token for token in tokenizer.all_special_tokens if token in text), key=text.index)
    if not specials or not text.startswith(specials[0]):
        raise ModelError(f"the chat template ends a turn with {text!r}; it needs one special token that ends a turn")
    end = specials[0]
    starts = [text.index(token, len(end)) for token in tokenizer.all_special_tokens if token in text[len(end) :]]
    cut = min(starts, default=len(end))
    return end, text[:cut], text[cut:]


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    ids = tokenizer.encode("a", add_special_tokens=True)
    return tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id
