"""YAML means what the field says, overlays merge as documented, and every mistake is answered with its place."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator

from rised.config import Chosen, ConfigError, Settings, operational, strict
from rised.config.loader import load, load_text, read_plain
from rised.config.resolved import dump, full_hash, settings_hash


class Colour(StrEnum):
    RED = "red"
    NO = "no"


class Adam(Settings):
    type: Literal["adam"] = strict("adam", description="Kind of optimiser.")
    lr: float = strict(1e-3, description="Learning rate.", gt=0)
    betas: tuple[float, float] = strict((0.9, 0.98), description="Momenta.")


class Sgd(Settings):
    type: Literal["sgd"] = strict("sgd", description="Kind of optimiser.")
    lr: float = strict(1e-1, description="Learning rate.")
    momentum: float = strict(0.0, description="Momentum.")


class Cluster(Settings):
    time: str = operational("1:00:00", description="Time limit.")
    workers: int = operational(2, description="Processes.")
    requeue: bool = operational(True, description="Whether to requeue.")


class Experiment(Settings):
    name: str = strict("x", description="Name.")
    optimiser: Annotated[Adam | Sgd, Field(discriminator="type")] = strict(Adam(), description="Optimiser.")
    cluster: Cluster = operational(Cluster(), description="Where it runs.")
    colours: list[Colour] = strict([], description="Colours.")
    weights: dict[str, float] = strict({}, description="Weights by environment.")
    limit: int | None = strict(None, description="A limit.")
    amount: int | Literal["auto", "no"] = strict("auto", description="A count, or auto.")
    label: str | int = strict("", description="A text or a count.")
    anything: Any = strict(None, description="Anything.")
    folder: Path = operational(Path("."), description="A folder.")
    stages: list[Adam] = strict([], description="Several.")

    @field_validator("name")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value) > 20:
            raise ValueError("a name has at most 20 characters")
        return value


class Scalars(Settings):
    lr: float = strict(description="")
    kl: float = strict(description="")
    clip: float = strict(description="")
    max_tokens: int = strict(description="")
    seed: int = strict(description="")
    groups: int = strict(description="")
    time: str = strict(description="")
    steer: str = strict(description="")
    mode: str = strict(description="")
    revision: str = strict(description="")
    version: str = strict(description="")
    sha: str = strict(description="")
    hint: str | None = strict(description="")


@pytest.fixture()
def lr_yaml(cases_dir: Path) -> Path:
    return cases_dir / "45-yaml-scalars" / "lr.yaml"


def test_a_key_given_twice_is_an_error_with_both_lines(lr_yaml: Path) -> None:
    with pytest.raises(ConfigError, match=r"lr\.yaml:14: the key 'lr' appears twice: first in line 1"):
        load(Scalars, [lr_yaml])


def test_doubtful_scalars_mean_what_the_field_says(lr_yaml: Path) -> None:
    """Case 45 without its last line (the second lr)."""
    text = "\n".join(lr_yaml.read_text().splitlines()[:-1])
    loaded = load_text(Scalars, text)
    assert loaded == Scalars(
        lr=1e-6,
        kl=1e-3,
        clip=0.2,
        max_tokens=10000,
        seed=123,
        groups=1000,
        time="12:30:00",
        steer="no",
        mode="on",
        revision="2026-11-29",
        version="1.10",
        sha="1234567e89",
        hint=None,
    )
    again = load_text(Scalars, dump(loaded))
    assert again == loaded
    assert settings_hash(again) == settings_hash(loaded) and full_hash(again) == full_hash(loaded)


def test_overrides_follow_the_rules_of_files(lr_yaml: Path) -> None:
    lines = lr_yaml.read_text().splitlines()
    base = load_text(Scalars, "\n".join(lines[1:]))
    overrides = [line.replace(": ", "=") for line in lines[:-1]]
    assert load_text(Scalars, "\n".join(lines[1:]), overrides=overrides) == base.model_copy(update={"lr": 1e-6})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("optimiser: {type: adam, lr: 1e-6}", ("optimiser.lr", 1e-6)),
        ("optimiser: {type: adam, lr: 1}", ("optimiser.lr", 1.0)),
        ("optimiser: {type: adam, betas: [.5, 1e-1]}", ("optimiser.betas", (0.5, 0.1))),
        ("optimiser: {type: sgd, momentum: .9}", ("optimiser.momentum", 0.9)),
        ("colours: [red, no]", ("colours", [Colour.RED, Colour.NO])),
        ("weights: {a: 1e1, no: 2}", ("weights", {"a": 10.0, "no": 2.0})),
        ("limit: 1e2", ("limit", 100)),
        ("limit: 0x10", ("limit", 16)),
        ("limit: -0", ("limit", 0)),
        ("limit: ~", ("limit", None)),
        ("limit:", ("limit", None)),
        ("amount: no", ("amount", "no")),
        ("amount: 7", ("amount", 7)),
        ("label: 7", ("label", 7)),
        ("label: '7'", ("label", "7")),
        ("label: 12e3", ("label", "12e3")),
        ("name: null", None),
        ("name: 'null'", ("name", "null")),
        ("name: !!str 12", ("name", "12")),
        ("name: true", ("name", "true")),
        ("name: 0x1F", ("name", "0x1F")),
        ("anything: [1, 1e3, no, true, 0123, ~, 'x', {a: .inf}]", None),
        ("cluster: {requeue: false}", ("cluster.requeue", False)),
        ("folder: 1.10", ("folder", Path("1.10"))),
        ("stages: [{lr: 1e-4}, {}]", ("stages.0.lr", 1e-4)),
    ],
)
def test_scalars_by_type(text: str, value: tuple[str, Any] | None) -> None:
    if value is None:
        if text.startswith("name"):
            with pytest.raises(ConfigError, match="name: Input should be a valid string; leave the key out"):
                load_text(Experiment, text)
        else:
            loaded = load_text(Experiment, text).anything
            assert loaded == [1, 1000.0, "no", True, 123, None, "x", {"a": math.inf}]
            assert [type(item) for item in loaded[:2]] == [int, float]
        return
    loaded: Any = load_text(Experiment, text)
    for part in value[0].split("."):
        loaded = loaded[int(part)] if part.isdigit() else getattr(loaded, part)
    assert loaded == value[1] and type(loaded) is type(value[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limit: 1.5", "x.yaml:1: limit: .*valid integer"),
        ("limit: 1e-2", "x.yaml:1: limit: .*valid integer"),
        ("limit: true", "x.yaml:1: limit: .*valid integer"),
        ("cluster:\n  requeue: no", "x.yaml:2: cluster.requeue: 'no' is text in YAML 1.2; write true or false"),
        ("cluster:\n  requeue: 'true'", "x.yaml:2: cluster.requeue: 'true' is text"),
        ("optimiser:\n  type: adam\n  lr: fast", r"x.yaml:3: optimiser.lr: .*valid number.*\(found 'fast'\)"),
        ("optimiser:\n  type: adam\n  lr: -1", "x.yaml:3: optimiser.lr: .*greater than 0"),
        ("optimiser:\n  type: adam\n  lrr: 1", "x.yaml:3: optimiser.lrr: unknown key; did you mean 'lr'?"),
        ("optimiser:\n  lr: 1", "x.yaml:1: optimiser: the key 'type' is missing, which says what kind this is"),
        ("optimiser: {type: adm}", "x.yaml:1: optimiser: .*did you mean 'adam'?"),
        ("colours: [rad]", "x.yaml:1: colours.0: .*did you mean 'red'?"),
        ("workers: 3", "x.yaml:1: workers: unknown key here; did you mean 'cluster.workers'?"),
        ("weights: {a: .inf}", "x.yaml:1: weights.a: .*finite number"),
        ("optimiser: {type: sgd, lr: .nan}", "x.yaml:1: optimiser.lr: .*finite number"),
        ("zzz: 3", "x.yaml:1: zzz: unknown key; the nearest valid key is "),
        ("name: aaaaaaaaaaaaaaaaaaaaaaaaa", "x.yaml:1: name: a name has at most 20 characters"),
        ("a: 1\nname: [", "x.yaml:2: not valid YAML"),
        ("- 1", "x.yaml: a configuration is a mapping"),
        ("name: !!python/object:os.system x", "x.yaml:1: the tag .* is not supported"),
        ("base: &b {a: 1}\nname:\n  <<: *b", r"x.yaml:3: merge keys \(<<\) are not supported"),
        ("name: &a [*a]", "x.yaml:1: an alias .* contains it"),
        ("a: 1\n---\nb: 2", "x.yaml:.*not valid YAML.*document"),
        ("? [a, b]\n: 1", "x.yaml:1: a key must be a single word"),
        ("extends: [base.yaml]", "extends nothing"),
    ],
)
def test_a_mistake_is_answered_with_file_line_key_and_mend(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        load_text(Experiment, text, "x.yaml")


def test_all_mistakes_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(Experiment, "nam: x\nlimit: many\noptimiser:\n  type: adam\n  lr: 0\n  bets: [1, 2]\n", "x.yaml")
    assert [problem.key for problem in caught.value.problems] == ["nam", "optimiser.bets", "optimiser.lr", "limit"]
    assert len(str(caught.value).splitlines()) == 4


def test_a_missing_key_is_named_with_the_place_where_it_belongs() -> None:
    class Panel(Settings):
        size: int = strict(description="")

    class Root(Settings):
        panels: dict[str, Panel] = strict(description="")

    with pytest.raises(ConfigError, match="x.yaml:2: panels.train.size: this key is required and missing"):
        load_text(Root, "panels:\n  train: {}", "x.yaml")


def test_documents_are_laid_over_what_they_extend(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "base.yaml").write_text("name: base\ncolours: [red]\noptimiser: {type: adam, lr: 1, betas: [.1, .2]}\n")
    (tmp_path / "parts" / "slow.yaml").write_text("extends: [../base.yaml]\noptimiser: {lr: 1e-5}\n")
    (tmp_path / "parts" / "named.yaml").write_text("name: named\ncluster: {workers: 9}\n")
    (tmp_path / "run.yaml").write_text("extends: [parts/slow.yaml, parts/named.yaml]\ncolours: [no]\n")
    loaded = load(Experiment, [tmp_path / "run.yaml"], ["cluster.time=12:30:00"])
    assert loaded == Experiment(
        name="named",
        colours=[Colour.NO],
        optimiser=Adam(lr=1e-5, betas=(0.1, 0.2)),
        cluster=Cluster(workers=9, time="12:30:00"),
    )


def test_a_later_file_wins_and_a_new_type_replaces_the_old_mapping(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\noptimiser: {type: adam, betas: [.1, .2]}\n")
    (tmp_path / "b.yaml").write_text("optimiser: {type: sgd, momentum: .5}\n")
    loaded = load(Experiment, [tmp_path / "a.yaml", tmp_path / "b.yaml"])
    assert loaded.name == "a" and loaded.optimiser == Sgd(momentum=0.5)
    assert load(Experiment, [tmp_path / "a.yaml"], ["optimiser.type=sgd"]).optimiser == Sgd()


def test_documents_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: [b.yaml]\n")
    (tmp_path / "b.yaml").write_text("extends: [a.yaml]\n")
    with pytest.raises(ConfigError, match="in a circle: a.yaml extends b.yaml extends a.yaml"):
        load(Experiment, [tmp_path / "a.yaml"])


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("[nothing.yaml]", "a.yaml:1: extends: there is no file .*nothing.yaml"),
        ("x.yaml", "give a list of paths"),
        ("[x.yaml, x.yaml]", "a.yaml:1: extends: 'x.yaml' appears twice"),
    ],
)
def test_what_cannot_be_extended_is_named(tmp_path: Path, extends: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(f"extends: {extends}\n")
    with pytest.raises(ConfigError, match=message):
        load(Experiment, [tmp_path / "a.yaml"])


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.yaml: cannot be read: No such file"):
        load(Experiment, [tmp_path / "none.yaml"])


def test_overrides_reach_elements_of_lists_and_replace_whole_values() -> None:
    text = "stages: [{lr: 1}, {lr: 2, betas: [.1, .2]}]\n"
    overrides = ["stages.1.lr=3e-1", "colours=[red, no]", "weights={a: 1}", "limit="]
    loaded = load_text(Experiment, text, overrides=overrides)
    assert loaded.stages == [Adam(lr=1), Adam(lr=0.3, betas=(0.1, 0.2))]
    assert loaded.colours == [Colour.RED, Colour.NO] and loaded.weights == {"a": 1.0} and loaded.limit is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("limit", "write it as a.b.c=value"),
        ("a b=1", "write it as a.b.c=value"),
        ("name.x=1", "override 'name.x=1': name: holds 'plain', so it has no key 'x'"),
        ("stages.5.lr=1", "stages: is a list of 1: an override names an element by its index"),
        ("optimiser.lrr=1", "override 'optimiser.lrr=1': optimiser.lrr: unknown key; did you mean 'lr'"),
        ("colours=[", "override 'colours=\\[': not valid YAML"),
    ],
)
def test_a_mistaken_override_is_quoted(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_text(Experiment, "name: plain\nstages: [{}]\n", overrides=[override])


def test_a_field_whose_type_the_document_chooses_reads_scalars_by_that_type() -> None:
    class Named(Settings):
        revision: str = strict(description="")

    def choose(mapping: Any) -> type[Settings]:
        if mapping.get("type") != "named":
            raise ValueError(f"no piece {mapping.get('type')!r}: there is named")
        return Typed

    class Typed(Named):
        type: Literal["named"] = strict("named", description="")

    def build(value: Any) -> Any:
        return Typed(**value) if isinstance(value, dict) else value

    class Root(Settings):
        piece: Annotated[SerializeAsAny[Settings], BeforeValidator(build), Chosen(choose)] = strict(description="")

    loaded = load_text(Root, "piece: {type: named, revision: 1.10}")
    assert loaded.piece == Typed(revision="1.10")
    assert load_text(Root, dump(loaded)) == loaded
    with pytest.raises(ConfigError, match="piece.revison: unknown key; did you mean 'revision'"):
        load_text(Root, "piece: {type: named, revison: 1.10}")
    with pytest.raises(ConfigError, match="piece: no piece 'other': there is named"):
        load_text(Root, "piece: {type: other}")


def test_a_file_without_a_model_is_read_by_the_core_rules(tmp_path: Path, lr_yaml: Path) -> None:
    copy = tmp_path / "lr.yaml"
    copy.write_text("\n".join(lr_yaml.read_text().splitlines()[:-1]) + "\nempty: {}\n")
    assert read_plain(copy) == {
        "lr": 1e-6,
        "kl": 1e-3,
        "clip": 0.2,
        "max_tokens": 1e4,
        "seed": 123,
        "groups": "1_000",
        "time": "12:30:00",
        "steer": "no",
        "mode": "on",
        "revision": "2026-11-29",
        "version": 1.1,
        "sha": 1234567e89,
        "hint": None,
        "empty": {},
    }


def test_absurd_nesting_is_refused() -> None:
    with pytest.raises(ConfigError, match="x.yaml:1: not valid YAML: maximum depth"):
        load_text(Experiment, "anything: " + "[" * 5000 + "]" * 5000, "x.yaml")
    assert load_text(Experiment, "anything: " + "[" * 50 + "]" * 50).anything
