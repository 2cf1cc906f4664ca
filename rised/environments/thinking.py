"""What a policy thinks aloud before it acts: closed thinking blocks, which no environment reads as actions."""

from __future__ import annotations

import re

_THINKING = re.compile(r"<(think|thinking)>.*?</\1>", re.DOTALL)


def without_thinking(reply: str) -> str:
    """The reply without its closed thinking blocks; formats quoted inside them do not count."""
    return _THINKING.sub("", reply)
