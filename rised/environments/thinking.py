"""What a policy thinks before it acts. Every reader of replies removes it here, by one rule.

Thinking is not acted on, quoted formats included. The stored tokens, mask and text of a reply keep it.
"""

from __future__ import annotations

import re

_LAST_BLOCK = re.compile(r"<(think|thinking)>(?:(?!</?(?:think|thinking)>).)*</\1>\s*\Z", re.DOTALL)
_CLOSING = re.compile(r"</(?:think|thinking)>")
_OPENING = re.compile(r"<(?:think|thinking)>")


def without_thinking(reply: str) -> str:
    """The part of a reply that follows its thinking, without leading blanks; "" if the thinking has no end.

    A closed block at the very end is dropped. Then everything up to the last closing tag is thought, with or without
    an opening tag (a chat template may have written that). An opening tag without a closing one hides the whole reply.
    """
    spoken = _LAST_BLOCK.sub("", reply)
    closings = list(_CLOSING.finditer(spoken))
    if closings:
        spoken = spoken[closings[-1].end() :].lstrip()
    return "" if _OPENING.search(spoken) else spoken
