"""Documents laid over each other: ``extends``, several files, and overrides from the command line.

Mappings are merged key by key; lists and scalars are replaced. A mapping whose ``type`` changes is replaced as a
whole, since its keys belong to another type. The order is: extended documents, the document itself, later documents,
overrides; later wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as SequenceABC
from pathlib import Path

from rised.config.errors import ConfigError, Problem
from rised.config.paths import shipped
from rised.config.source import Mapping, Origin, Scalar, Sequence, Tree, core_value, parse, read

EXTENDS = "extends"
_OVERRIDE_KEY = re.compile(r"[^\s=.]+(\.[^\s=.]+)*")


def compose(paths: SequenceABC[Path | str], overrides: SequenceABC[str] = ()) -> Mapping:
    """One mapping from files (later wins) and ``a.b.c=value`` overrides."""
    result = Mapping({}, {}, Origin("the command line"))
    for path in paths:
        result = merge(result, _document(Path(path), ()))
    return apply_overrides(result, overrides)


def compose_text(text: str, source: str, overrides: SequenceABC[str] = ()) -> Mapping:
    """One mapping from a text that stands alone (a saved configuration)."""
    document = _mapping(parse(text, source), source)
    if EXTENDS in document.items:
        raise ConfigError([Problem(str(document.keys[EXTENDS]), EXTENDS, "a saved configuration extends nothing")])
    return apply_overrides(document, overrides)


def merge(base: Mapping, over: Mapping, above: str = "") -> Mapping:
    """``over`` laid on ``base``; neither is changed. ``above``: the dotted key of both, for messages.

    ConfigError for an empty mapping over one with keys, which would change nothing.
    """
    items, keys = dict(base.items), dict(base.keys)
    for key, value in over.items.items():
        items[key] = _laid(items.get(key), value, f"{above}.{key}" if above else key)
        keys[key] = over.keys[key]
    return Mapping(items, keys, over.origin)


def _laid(below: Tree | None, over: Tree, key: str) -> Tree:
    if isinstance(below, Mapping) and isinstance(over, Mapping) and not _type_differs(below, over):
        if below.items and not over.items:
            names = ", ".join(below.items)
            message = f"{{}} changes nothing: mappings are merged key by key; name the keys to change (there: {names})"
            raise ConfigError([Problem(str(over.origin), key, message)])
        return merge(below, over, key)
    return over


def _type_differs(base: Mapping, over: Mapping) -> bool:
    old, new = base.items.get("type"), over.items.get("type")
    return isinstance(old, Scalar) and isinstance(new, Scalar) and old.text != new.text


def _mapping(tree: Tree, source: str) -> Mapping:
    if isinstance(tree, Mapping):
        return tree
    raise ConfigError([Problem(source, "", "a configuration is a mapping of keys to values at its top level")])


def _document(path: Path, chain: tuple[Path, ...]) -> Mapping:
    """The document with what it extends; ``chain`` are the documents that led here."""
    path = shipped(path)
    resolved = path.resolve()
    if resolved in chain:
        names = " extends ".join(step.name for step in (*chain[chain.index(resolved) :], resolved))
        raise ConfigError([Problem(str(path), EXTENDS, f"documents extend each other in a circle: {names}")])
    document = _mapping(read(path), str(path))
    parents = document.items.get(EXTENDS)
    origin = document.keys.get(EXTENDS, document.origin)
    result = Mapping({}, {}, document.origin)
    for parent in _parents(parents, origin):
        parent_path = path.parent / parent
        if not parent_path.is_file():
            raise ConfigError([Problem(str(origin), EXTENDS, f"there is no file {parent_path}")])
        result = merge(result, _document(parent_path, (*chain, resolved)))
    items = {key: value for key, value in document.items.items() if key != EXTENDS}
    return merge(result, Mapping(items, document.keys, document.origin))


def _parents(tree: Tree | None, origin: Origin) -> list[str]:
    if tree is None:
        return []
    if not isinstance(tree, Sequence) or not all(isinstance(item, Scalar) and item.text for item in tree.items):
        raise ConfigError([Problem(str(origin), EXTENDS, "give a list of paths relative to this file: [../base.yaml]")])
    names = [item.text for item in tree.items if isinstance(item, Scalar)]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError([Problem(str(origin), EXTENDS, f"{name!r} appears twice; name each file once")])
    return names


def apply_overrides(document: Mapping, overrides: SequenceABC[str]) -> Mapping:
    """Lay ``a.b.c=value`` on a document, in order. Values are YAML and follow the rules of files."""
    for override in overrides:
        key, separator, text = override.partition("=")
        source = f"override {override!r}"
        if not separator or not _OVERRIDE_KEY.fullmatch(key):
            raise ConfigError([Problem(source, "", "write it as a.b.c=value")])
        origin = Origin(source)
        value = parse(text, source, override=True) if text.strip() else Scalar("", False, origin)
        document = merge(document, _mapping(_over(document, key.split("."), value, origin, ""), source))
    return document


def _over(below: Tree | None, path: list[str], value: Tree, origin: Origin, above: str) -> Tree:
    """The tree to lay over ``below`` so that ``value`` stands at ``path``."""
    if not path:
        return value
    name, *rest = path
    if isinstance(below, Sequence):
        return _over_element(below, path, value, origin, above)
    if isinstance(below, Scalar) and (below.quoted or core_value(below.text) is not None):
        raise ConfigError([Problem(str(origin), above, f"holds {below.text!r}, so it has no key {name!r}")])
    child = below.items.get(name) if isinstance(below, Mapping) else None
    here = f"{above}.{name}" if above else name
    return Mapping({name: _over(child, rest, value, origin, here)}, {name: origin}, origin)


def _over_element(below: Sequence, path: list[str], value: Tree, origin: Origin, above: str) -> Sequence:
    name, *rest = path
    if not name.isdecimal() or int(name) >= len(below.items):
        message = f"is a list of {len(below.items)}: an override names an element by its index from 0, not {name!r}"
        raise ConfigError([Problem(str(origin), above, message)])
    index = int(name)
    element = _over(below.items[index], rest, value, origin, f"{above}.{name}")
    items = [
        _laid(item, element, f"{above}.{name}") if place == index else item for place, item in enumerate(below.items)
    ]
    return Sequence(items, below.origin)
