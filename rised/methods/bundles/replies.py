"""From a writer's reply to criteria: a numbered list, taken as a whole or not at all."""

from __future__ import annotations

import re

from rised.environments.thinking import without_thinking

LONGEST_CRITERION = 600
"""Characters; a longer one is an essay and no criterion [ours]."""
_ITEM = re.compile(r"\s{0,3}(?:\*\*)?(\d{1,2})[.)](?:\*\*)?\s+(\S.*)")


class UnreadableBundle(ValueError):
    """Why a reply is no bundle."""


def read_criteria(text: str, least: int, most: int) -> tuple[str, ...]:
    """The criteria of a reply, ``least`` to ``most`` of them, numbered from 1 without a gap.

    Words before the list are passed over and lines without a number continue a criterion until an empty line, after
    which only a further number counts. Thinking is left out. UnreadableBundle says what is wrong.
    """
    body = without_thinking(text)
    criteria: list[str] = []
    open_item = False
    for line in body.splitlines():
        item = _ITEM.fullmatch(line.rstrip())
        if item:
            if int(item[1]) != len(criteria) + 1:
                raise UnreadableBundle(f"number {item[1]} follows criterion {len(criteria)}")
            criteria.append(item[2].strip())
            open_item = True
        elif not line.strip():
            open_item = False
        elif open_item:
            criteria[-1] = f"{criteria[-1]} {line.strip()}"
    if not least <= len(criteria) <= most:
        raise UnreadableBundle(f"{len(criteria)} criteria, wanted are {least} to {most}")
    if len({criterion.casefold() for criterion in criteria}) < len(criteria):
        raise UnreadableBundle("a criterion stands twice")
    longest = max(criteria, key=len)
    if len(longest) > LONGEST_CRITERION:
        raise UnreadableBundle(f"criterion {criteria.index(longest) + 1} has {len(longest)} characters")
    return tuple(criteria)
