"""YAML text to a tree that remembers: every scalar keeps its source text, every value its file and line.

YAML is read as version 1.2, and no scalar is interpreted here: what ``1e-6`` or ``no`` means depends on the type of
the field that it fills (``binding``). :func:`plain_value` holds the 1.2 core rules for where no type is known. Equal
keys, unknown tags and merge keys are errors. Overlays are in ``overlays``.
"""

from __future__ import annotations

import functools
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from rised.config.errors import ConfigError, Problem
from rised.records.text import storable

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
_STANDARD_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "timestamp")}

MAX_DEPTH = 100
"""Levels of nesting that a document may have; deeper ones are refused instead of overflowing the stack."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: a file and a line from 1, or (line 0) an override on the command line."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar as written. ``quoted`` scalars are text whatever they look like."""

    text: str
    quoted: bool
    origin: Origin


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping; ``keys`` says where each key was written."""

    items: dict[str, Tree]
    keys: dict[str, Origin]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    items: list[Tree]
    origin: Origin


Tree = Scalar | Mapping | Sequence


@functools.lru_cache(maxsize=128)
def parse(text: str | bytes, source: str, override: bool = False) -> Tree:
    """Tree of one YAML document. ``source`` names it in messages; an ``override`` has no lines of its own.

    A text is parsed once in a process, which takes a second for the vocabulary: change no tree in place.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = source if mark is None or override else f"{source}:{mark.line + 1}"
        raise ConfigError([Problem(where, "", f"not valid YAML: {error.problem or error.context}")]) from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(source, "", f"not valid YAML: {' '.join(str(error).split())}")]) from None
    if node is None:
        return Mapping({}, {}, Origin(source))
    return _Builder(source, override).tree(node, frozenset())


def read(path: Path) -> Tree:
    """Tree of a YAML file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError([Problem(str(path), "", f"cannot be read: {error.strerror or error}")]) from None
    return parse(data, str(path))


class _Builder:
    def __init__(self, source: str, override: bool) -> None:
        self.source = source
        self.override = override

    def origin(self, node: Node) -> Origin:
        return Origin(self.source, 0 if self.override else node.start_mark.line + 1)

    def fail(self, node: Node, message: str) -> ConfigError:
        return ConfigError([Problem(str(self.origin(node)), "", message)])

    def refuse_surrogate(self, node: ScalarNode) -> None:
        if storable(node.value) != node.value:
            raise self.fail(node, "the text holds half a character (a lone surrogate); write all of it")

    def tree(self, node: Node, above: frozenset[int]) -> Tree:
        """``above``: ids of the nodes around this one, to refuse an alias to what contains it."""
        if id(node) in above:
            raise self.fail(node, "an alias (*) points to the value that contains it")
        tag = str(node.tag)
        if isinstance(node, ScalarNode):
            if tag not in _STANDARD_TAGS:
                raise self.fail(node, f"the tag {tag!r} is not supported; write plain YAML")
            self.refuse_surrogate(node)
            quoted = node.style is not None or (tag.endswith(":str") and not isinstance(core_value(node.value), str))
            return Scalar(node.value, quoted, self.origin(node))
        if tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise self.fail(node, f"the tag {tag!r} is not supported; write plain YAML")
        if isinstance(node, MappingNode):
            return self.mapping(node, above | {id(node)})
        assert isinstance(node, SequenceNode)
        return Sequence([self.tree(item, above | {id(node)}) for item in node.value], self.origin(node))

    def mapping(self, node: MappingNode, above: frozenset[int]) -> Mapping:
        items: dict[str, Tree] = {}
        keys: dict[str, Origin] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise self.fail(key, "a key must be a single word or number")
            if key.tag == "tag:yaml.org,2002:merge" and key.style is None:
                raise self.fail(key, "merge keys (<<) are not supported; name the other file under extends")
            self.refuse_surrogate(key)
            name = key.value
            if name in items:
                raise self.fail(key, f"the key {name!r} appears twice: first in line {keys[name].line}; remove one")
            items[name] = self.tree(value, above)
            keys[name] = self.origin(key)
        return Mapping(items, keys, self.origin(node))


def core_value(text: str) -> None | bool | int | float | str:
    """What a plain scalar means by the core schema of YAML 1.2: ``0123`` is 123, ``1e4`` a float, ``no`` text."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", ""))
    if text in _NAN:
        return float("nan")
    return text


def plain_value(tree: Tree) -> Any:
    """Dictionaries, lists and core-schema scalars, for where no field type is known."""
    if isinstance(tree, Scalar):
        return tree.text if tree.quoted else core_value(tree.text)
    if isinstance(tree, Sequence):
        return [plain_value(item) for item in tree.items]
    return {key: plain_value(value) for key, value in tree.items.items()}


def text_of(tree: Tree) -> str:
    """YAML of a composed document. Read again it gives the same tree: plain scalars stay plain, quoted ones quoted."""
    yaml, stream = YAML(typ="safe", pure=True), io.StringIO()
    yaml.default_flow_style = False
    yaml.width = 1 << 20

    def scalar(text: str, quoted: bool) -> ScalarNode:
        plain = "" if quoted else str(yaml.resolver.resolve(ScalarNode, text, (True, False)))
        return ScalarNode(plain or "tag:yaml.org,2002:str", text, style='"' if quoted else None)

    def node(tree: Tree) -> Node:
        if isinstance(tree, Mapping):
            pairs = [(scalar(key, True), node(value)) for key, value in tree.items.items()]
            return MappingNode("tag:yaml.org,2002:map", pairs, flow_style=not pairs)
        if isinstance(tree, Sequence):
            items = [node(item) for item in tree.items]
            return SequenceNode("tag:yaml.org,2002:seq", items, flow_style=not items)
        return scalar(tree.text if tree.text or tree.quoted else "null", tree.quoted)

    yaml.serialize(node(tree), stream)
    return stream.getvalue()


def written_in(tree: Tree | None) -> set[str]:
    """The sources in which the values of a composed document stand."""
    if tree is None:
        return set()
    if isinstance(tree, Scalar):
        return {tree.origin.source}
    return {
        name
        for value in (tree.items.values() if isinstance(tree, Mapping) else tree.items)
        for name in written_in(value)
    }
