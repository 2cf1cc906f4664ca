"""Reading the policy's replies: which Python code a reply asks to run.

The first block of Python counts, as in the benchmark's baseline agent: what stands behind it was written without
having seen its output. Whether the code is any good is the engine's business.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from rised.environments.thinking import without_thinking

MAX_CODE_CHARS = 100_000
_OPENING = re.compile(r"```(?:[ \t]*([\w+#.-]*)[ \t]*(?:\n|\Z)|(python3?|py)[ \t]+)?", re.IGNORECASE)
_CLOSING = re.compile(r"(?:^[ \t]*)?```[ \t]*$", re.MULTILINE)
_PYTHON = frozenset({"python", "py", "python3"})
_INVENTED = re.compile(r"^\W*(?:execution (?:successful|failed)|output|observation|result)\b", re.IGNORECASE | re.M)


@dataclass(frozen=True, slots=True)
class Reply:
    """``code`` is None when nothing can be run, and ``problem`` says why.

    ``blocks`` counts the Python blocks. ``closed``: the block that counts has its closing fence (True of bare code).
    ``invents``: the text behind the code writes an output that only the environment can give.
    """

    code: str | None
    problem: str = ""
    blocks: int = 0
    closed: bool = True
    invents: bool = False


@dataclass(frozen=True, slots=True)
class _Block:
    language: str
    code: str
    end: int
    closed: bool


def read_reply(reply: str) -> Reply:
    """The code of a reply: its first Python block, else its first block without a language, else the whole, if code.

    A block without closing fence reaches to the end of the reply. A block in another language is no code.
    """
    text = without_thinking(reply)
    blocks = _blocks(text)
    tagged = [block for block in blocks if block.language in _PYTHON]
    candidates = tagged or [block for block in blocks if not block.language]
    if candidates:
        first = candidates[0]
        if not first.code.strip():
            return Reply(None, "the code block is empty", len(candidates), first.closed)
        if len(first.code) > MAX_CODE_CHARS:
            return Reply(None, f"the code is longer than {MAX_CODE_CHARS} characters", len(candidates), first.closed)
        invents = len(candidates) > 1 or bool(_INVENTED.search(text[first.end :]))
        return Reply(first.code, "", len(candidates), first.closed, invents)
    if blocks:
        return Reply(None, f"the block is marked {blocks[0].language!r}, not python")
    if not text.strip():
        return Reply(None, "the reply is empty")
    if len(text) > MAX_CODE_CHARS:
        return Reply(None, f"the reply is longer than {MAX_CODE_CHARS} characters")
    if does_something(text):
        return Reply(text.strip())
    return Reply(None, "the reply has no code block")


def does_something(text: str) -> bool:
    """Whether a text without fences is Python that acts: it parses, and not only into names, constants and notes."""
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    acting = (ast.Call, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.Delete)
    return any(isinstance(node, acting) and not _is_annotation_only(node) for node in ast.walk(tree))


def _is_annotation_only(node: ast.AST) -> bool:
    """``Note: done`` parses as an annotation of a name; without a value it does nothing."""
    return isinstance(node, ast.AnnAssign) and node.value is None


def _blocks(text: str) -> list[_Block]:
    """The fenced blocks in order. A fence closes at the end of a line, or within its own line (```x``` and more)."""
    found, position = [], 0
    while opening := _OPENING.search(text, position):
        start = opening.end()
        inline = text.find("```", start, _line_end(text, start)) if not opening.group(0).endswith("\n") else -1
        if inline >= 0:
            code, end, closed = text[start:inline], inline + 3, True
        else:
            closing = _CLOSING.search(text, start)
            code = text[start : closing.start() if closing else len(text)]
            end, closed = (closing.end(), True) if closing else (len(text), False)
        language = (opening.group(1) or opening.group(2) or "").lower()
        found.append(_Block(language, code.strip("\n"), end, closed))
        position = end
    return found


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end
