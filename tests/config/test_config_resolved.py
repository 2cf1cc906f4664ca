"""Resolved settings keep their hash through a file, and a resumed run may change operational keys only."""

from __future__ import annotations

import importlib
import math
import pkgutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

import rised
from rised.config import ConfigError, Settings, operational, strict
from rised.config.loader import load_text
from rised.config.paths import check_results_path
from rised.config.resolved import (
    changed_strict_keys,
    classification_gaps,
    dump,
    full_hash,
    refuse_changed_strict_keys,
    settings_hash,
)


class Inner(Settings):
    model_config = ConfigDict(allow_inf_nan=True)
    lr: float = strict(1e-6, description="")
    workers: int = operational(2, description="")


class Outer(Settings):
    model_config = ConfigDict(allow_inf_nan=True)
    name: str = strict("x", description="")
    inner: Inner = strict(Inner(), description="")
    place: Inner = operational(Inner(), description="")
    many: list[Inner] = strict([], description="")
    named: dict[str, Inner] = strict({}, description="")
    words: frozenset[str] = strict(frozenset(), description="")
    anything: Any = strict(None, description="")
    maybe: str | None = strict(None, description="")
    bounds: tuple[float, float] = strict((0.0, math.inf), description="")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
INNER = st.builds(Inner, lr=st.floats(allow_nan=False), workers=st.integers())
OUTER = st.builds(
    Outer,
    name=st.text(max_size=12),
    inner=INNER,
    place=INNER,
    many=st.lists(INNER, max_size=2),
    named=st.dictionaries(st.text(max_size=4), INNER, max_size=2),
    words=st.frozensets(st.text(max_size=4), max_size=4),
    anything=PLAIN,
    maybe=st.none() | st.text(max_size=5),
)


@settings(max_examples=80, deadline=None)
@given(OUTER)
def test_saved_settings_load_equal_with_equal_hashes(value: Outer) -> None:
    again = load_text(Outer, dump(value))
    assert again == value
    assert settings_hash(again) == settings_hash(value) and full_hash(again) == full_hash(value)
    assert dump(again) == dump(value)


DOUBTFUL = ["no", "on", "y", "null", "~", "", "1e-6", "1.10", "12:30:00", "2026-11-29", "0123", " a", "a: b", "é", "\n"]


@pytest.mark.parametrize("text", DOUBTFUL)
def test_saved_text_is_text_for_any_reader(text: str) -> None:
    saved = dump(Outer(name=text))
    assert load_text(Outer, saved).name == text
    assert yaml.safe_load(saved)["name"] == text


def test_saved_numbers_are_numbers_for_any_reader() -> None:
    saved = dump(Outer(inner=Inner(lr=1e-6)))
    assert "lr: 1.0e-06" in saved
    assert yaml.safe_load(saved)["inner"]["lr"] == 1e-6


def test_the_settings_hash_follows_strict_keys_only() -> None:
    base = Outer()
    assert settings_hash(Outer(inner=Inner(workers=9))) == settings_hash(base)
    assert settings_hash(Outer(place=Inner(lr=1.0))) == settings_hash(base), "all below an operational key"
    assert full_hash(Outer(inner=Inner(workers=9))) != full_hash(base)
    different = [
        Outer(inner=Inner(lr=1.0)),
        Outer(many=[Inner()]),
        Outer(named={"a": Inner()}),
        Outer(words=frozenset("a")),
        Outer(anything={}),
        Outer(maybe=""),
        Outer(bounds=(0.0, 1.0)),
    ]
    assert len({settings_hash(value) for value in [base, *different]}) == 8
    assert settings_hash(Outer(many=[Inner(workers=1)])) == settings_hash(Outer(many=[Inner(workers=5)]))


def test_a_changed_strict_key_is_named_with_both_values() -> None:
    old = Outer(inner=Inner(lr=1e-6, workers=1), named={"a": Inner()})
    new = Outer(inner=Inner(lr=2e-6, workers=8), place=Inner(lr=5.0), maybe="a")
    assert [change.key for change in changed_strict_keys(old, new)] == ["inner.lr", "named.a.lr", "maybe", "named"]
    with pytest.raises(ConfigError, match=r"results/x: inner\.lr: was 1e-06 when the run began and is 2e-06 now"):
        refuse_changed_strict_keys(old, new, "results/x")
    refuse_changed_strict_keys(old, old.model_copy(update={"place": Inner(lr=3.0)}), "results/x")


def test_an_unclassified_field_is_found_in_nested_classes() -> None:
    class Loose(BaseModel):
        a: int = 1

    class Holder(Settings):
        loose: list[dict[str, Loose | None]] = strict([], description="")
        b: int = 2

    gaps = classification_gaps(Holder)
    assert [gap.rsplit(".", 2)[-2:] for gap in gaps] == [["Loose", "a"], ["Holder", "b"]]
    assert classification_gaps(Outer) == []


def _settings_classes() -> list[type[Settings]]:
    """Every settings class of the library, found by importing the modules named ``settings`` and those beside them."""
    for module in pkgutil.walk_packages(rised.__path__, "rised."):
        if module.name.endswith(".settings"):
            importlib.import_module(module.name)
    found: list[type[Settings]] = []
    todo: list[type[Settings]] = [Settings]
    while todo:
        subclasses = todo.pop().__subclasses__()
        todo += subclasses
        found += [cls for cls in subclasses if cls.__module__.startswith("rised.")]
    return found


def test_every_key_of_the_library_is_strict_or_operational() -> None:
    classes = _settings_classes()
    assert classes, "no settings class was found"
    assert {cls.__qualname__: gaps for cls in classes if (gaps := classification_gaps(cls))} == {}


def test_paths_that_batch_jobs_carry_are_accepted_and_others_named(cases_dir: Path) -> None:
    """Case 41, by its own list of folder names."""
    import json

    refused = {"per%j": "'%j'", "back\\slash": r"backslash '\\'", "new\nline": r"line break \(line feed\)"}
    names = json.loads((cases_dir / "41-awkward-run-paths" / "paths.json").read_text())
    assert len(names) == 14 and set(refused) <= set(names)
    for name in names:
        if name in refused:
            with pytest.raises(ConfigError, match=refused[name]):
                check_results_path(f"/results/{name}/run")
        else:
            assert check_results_path(Path("/results") / name) == Path("/results") / name


@pytest.mark.parametrize("name", ["a%5t", "%A", "%9", "a\rb", "%%j"])
def test_other_patterns_of_slurm_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="in the results path"):
        check_results_path(f"results/{name}")


def test_a_later_key_at_its_default_leaves_the_hash_of_earlier_runs_as_it_was() -> None:
    class Before(Settings):
        lr: float = strict(1.0, description="")

    class Later(Before):
        lag: int = strict(0, in_hash_at_default=False, description="")

    class Outside(Settings):
        inner: Before = strict(Before(), description="")
        other: int = strict(3, in_hash_at_default=False, description="")

    assert settings_hash(Later()) == settings_hash(Before()) != settings_hash(Later(lag=1))
    assert settings_hash(Outside()) == settings_hash(Outside(inner=Later()))
    assert settings_hash(Outside(inner=Later(lag=1))) != settings_hash(Outside()) != settings_hash(Outside(other=4))
    assert [change.key for change in changed_strict_keys(Later(), Later(lag=1))] == ["lag"]
