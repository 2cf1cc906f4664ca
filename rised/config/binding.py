"""Scalars get their meaning from the field they fill; unknown keys get the nearest valid one.

A text field receives the source text (``no``, ``1.10``, ``12:30:00``, ``1234567e89`` stay as written), a number field
a number (``1e-6``; ``1e4`` is 10000 for an integer; ``0123`` is 123; ``1_000`` is 1000), a yes/no field only ``true``
or ``false``. What is left to check (ranges, choices, missing keys) is pydantic's, in ``loader``.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rised.config.errors import Problem
from rised.config.settings import Chosen
from rised.config.source import Mapping, Scalar, Sequence, Tree, core_value, plain_value

_LISTS = (list, set, frozenset, typing.get_origin(typing.Sequence[int]), typing.get_origin(typing.Iterable[int]))
_NONE = type(None)


class Binder:
    """Turns a tree into what pydantic validates; ``problems`` collects what is wrong already."""

    def __init__(self, root: type[BaseModel]) -> None:
        self.root = root
        self.problems: list[Problem] = []

    def model(self, tree: Mapping, model: type[BaseModel], key: str = "") -> dict[str, Any]:
        """Values of a model's fields; unknown keys are reported and left out."""
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        allows_extra = model.model_config.get("extra") == "allow"
        bound: dict[str, Any] = {}
        for name, value in tree.items.items():
            here = f"{key}.{name}" if key else name
            if name in fields:
                bound[name] = self.value(value, self._annotation(value, fields[name], here), here)
            elif allows_extra:
                bound[name] = plain_value(value)
            else:
                self.problems.append(Problem(str(tree.keys[name]), here, self._unknown(name, list(fields), key)))
        return bound

    def _annotation(self, tree: Tree, field: FieldInfo, key: str) -> Any:
        """The field's type; for a :class:`Chosen` one, the type that the document asks for."""
        for mark in field.metadata:
            if isinstance(mark, Chosen) and isinstance(tree, Mapping):
                try:
                    return mark.choose(plain_value(tree))
                except ValueError as error:
                    self.problems.append(Problem(str(tree.origin), key, str(error)))
                    return Any
        return field.annotation

    def value(self, tree: Tree, annotation: Any, key: str) -> Any:
        """A tree as the value of a field with that annotation."""
        members = list(union_members(annotation))
        if isinstance(tree, Scalar):
            return self._scalar(tree, members, key)
        if isinstance(tree, Sequence):
            return self._list(tree, members, key)
        model = choose_model(tree, [member for member in members if is_model(member)])
        if model is not None:
            return self.model(tree, model, key)
        for member in members:
            if get_origin(member) in (dict, typing.get_origin(typing.Mapping[str, int])):
                kind = get_args(member)[1]
                return {name: self.value(item, kind, f"{key}.{name}") for name, item in tree.items.items()}
        return plain_value(tree)

    def _list(self, tree: Sequence, members: list[Any], key: str) -> Any:
        for member in members:
            origin, arguments = get_origin(member), get_args(member)
            if origin is tuple and arguments and arguments[-1] is not Ellipsis:
                kinds = [*arguments, *[Any] * len(tree.items)]
            elif origin in (*_LISTS, tuple) and arguments:
                kinds = [arguments[0]] * len(tree.items)
            else:
                continue
            pairs = zip(tree.items, kinds, strict=False)
            return [self.value(item, kind, f"{key}.{index}") for index, (item, kind) in enumerate(pairs)]
        return plain_value(tree)

    def _scalar(self, tree: Scalar, members: list[Any], key: str) -> Any:
        bound = tree.text if tree.quoted else typed_scalar(tree.text, members)
        if isinstance(bound, str) and set(members) <= {bool, _NONE}:
            message = f"{bound!r} is text in YAML 1.2; write true or false, without quotes"
            self.problems.append(Problem(str(tree.origin), key, message))
            return False
        return bound

    def _unknown(self, name: str, valid: list[str], key: str) -> str:
        near = difflib.get_close_matches(name, valid, n=1)
        if near:
            return f"unknown key; did you mean {near[0]!r}?"
        if key and f"{key}.{name}" in dotted_keys(self.root):
            return f"this key belongs to another type of {key}: it needs another {key}.type"
        elsewhere = [dotted for dotted in dotted_keys(self.root) if dotted.split(".")[-1] == name]
        if elsewhere:
            return f"unknown key here; did you mean {elsewhere[0]!r}?"
        where = f"under {key!r}" if key else "at the top level"
        return f"unknown key; the nearest valid key is {_nearest(name, valid)!r} (valid {where}: {', '.join(valid)})"


def _nearest(name: str, valid: list[str]) -> str:
    return max(valid, key=lambda other: difflib.SequenceMatcher(None, name, other).ratio(), default="none")


def typed_scalar(text: str, members: list[Any]) -> Any:
    """A plain scalar for a field that takes any of ``members``."""
    value = core_value(text)
    for choice in (choice for member in members if get_origin(member) is Literal for choice in get_args(member)):
        if choice == text or (type(choice) is type(value) and choice == value):
            return choice
    kinds = {member for member in members if get_origin(member) is not Literal}
    if value is None or Any in kinds:
        return value
    if isinstance(value, bool):
        return value if bool in kinds else text
    number = _number(text)
    if int in kinds and (isinstance(value, int) or (str not in kinds and float not in kinds)):
        exact = _exact_int(text) if isinstance(value, str | float) else value
        if exact is not None:
            return exact
    if float in kinds and (isinstance(value, int | float) or (number is not None and str not in kinds)):
        return float(number if number is not None else value)
    return text


def _number(text: str) -> float | int | None:
    """A number that may have underscores between digits, None if the text is no number."""
    value = core_value(text.replace("_", "")) if "_" in text.strip("_") and "__" not in text else core_value(text)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _exact_int(text: str) -> int | None:
    """The integer that ``1e4`` or ``1_000`` stand for; None if it is none (or too long to be meant)."""
    if _number(text) is None:
        return None
    try:
        number = Decimal(text.replace("_", ""))
    except InvalidOperation:
        return None
    if not number.is_finite() or number != number.to_integral_value() or number.adjusted() > 18:
        return None
    return int(number)


def union_members(annotation: Any) -> Iterator[Any]:
    """The alternatives of a field's type, without ``Annotated`` wrappers."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from union_members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from union_members(argument)
    elif isinstance(annotation, typing.TypeVar):
        yield Any
    elif hasattr(annotation, "__supertype__"):
        yield from union_members(annotation.__supertype__)
    else:
        yield annotation


def is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def choose_model(tree: Mapping, models: list[type[BaseModel]]) -> type[BaseModel] | None:
    """The model that a mapping is meant for: the one whose literal fields (``type``) agree, else the best fit of keys.

    None if a literal field excludes all: pydantic then lists the choices.
    """
    fitting = [model for model in models if _literals_agree(tree, model)]
    if len(models) > 1 and len(fitting) > 1:
        return max(fitting, key=lambda model: len(tree.items.keys() & model.model_fields.keys()))
    if len(models) == 1:
        return models[0]
    return fitting[0] if fitting else None


def _literals_agree(tree: Mapping, model: type[BaseModel]) -> bool:
    for name, field in model.model_fields.items():
        given = tree.items.get(name)
        if get_origin(field.annotation) is Literal and isinstance(given, Scalar):
            choices = get_args(field.annotation)
            if typed_scalar(given.text, [field.annotation]) not in choices:
                return False
        elif get_origin(field.annotation) is Literal and given is None and field.is_required():
            return False
    return True


def dotted_keys(model: type[BaseModel], above: str = "", seen: frozenset[type] = frozenset()) -> Iterator[str]:
    """All keys of a model and of the models in it."""
    if model in seen:
        return
    for name, field in model.model_fields.items():
        here = f"{above}.{name}" if above else name
        yield here
        for member in union_members(field.annotation):
            if is_model(member):
                yield from dotted_keys(member, here, seen | {model})
