"""The documentation keeps to the code: the table of keys is the generated one, links lead somewhere, examples work."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import rised.environments
import rised.methods.selectors
import rised.rubrics.detectors
from rised.config.loader import load, read_plain
from rised.environments.base import ENVIRONMENTS
from rised.environments.discovery import get
from rised.experiment import ExperimentConfig
from rised.methods.base import PromptGroup
from rised.methods.composition import Method
from rised.methods.registry import PIECES
from rised.methods.settings import MethodSettings
from rised.methods.streams import Reduction
from rised.records.types import Rollout, TagState
from rised.rollouts.demonstrations import play_expert
from rised.rubrics.base import DETECTORS
from rised.rubrics.judge_rules import RuleJudge
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary
from stages.config_docs import renewed

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED_FENCE = re.compile(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXTENDED = (rised.environments, rised.methods.selectors, rised.rubrics.detectors)
EXAMPLES = ("rised.environments.guess", "rised.methods.selectors.hardest", "rised.rubrics.detectors.guess")


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def anchors(document: Path) -> set[str]:
    """Fragments of the headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()) for heading in headings)
    return {text.strip().replace(" ", "-") for text in plain}


# ---- the documents


def test_the_table_of_keys_is_what_the_settings_classes_say() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert renewed(text) == text, "renew it: python -m stages.config_docs docs/configuration.md"


@pytest.mark.parametrize("document", DOCUMENTS, ids=names(DOCUMENTS))
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(document: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        name, _, fragment = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (fragment and fragment not in anchors(path)):
            broken.append(target)
    assert not broken


def test_every_document_is_reached_from_the_readme() -> None:
    linked = {target.partition("#")[0] for target in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert {f"docs/{path.name}" for path in DOCUMENTS[1:]} <= linked


@pytest.mark.parametrize("document", DOCUMENTS, ids=names(DOCUMENTS))
def test_what_the_python_blocks_import_exists(document: Path) -> None:
    for language, code in FENCE.findall(document.read_text(encoding="utf-8")):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.ImportFrom) or node.module is None or node.module.startswith(EXAMPLES[0]):
                continue
            module = importlib.import_module(node.module)
            absent = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not absent, f"{document.name}: {node.module} has no {', '.join(absent)}"


def test_every_module_that_a_command_runs_exists() -> None:
    commands = {name for document in DOCUMENTS for name in re.findall(r"-m ([a-z_]+(?:\.\w+)+)", document.read_text())}
    assert "stages.train" in commands
    assert [name for name in sorted(commands) if importlib.util.find_spec(name) is None] == []


# ---- the worked examples


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files that the two guides show, on disk and importable; afterwards as if they had never been."""
    for name in ("adding-an-environment.md", "adding-a-method.md"):
        for path, text in NAMED_FENCE.findall((ROOT / "docs" / name).read_text(encoding="utf-8")):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "configs" / "models", tmp_path / "configs" / "models")
    for package in EXTENDED:
        folder = tmp_path / package.__name__.replace(".", "/")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield tmp_path
    ENVIRONMENTS.pop("guess", None)
    DETECTORS.pop("guess", None)
    PIECES["selector"].pop("hardest", None)
    for name in [name for name in sys.modules if name.startswith(EXAMPLES)]:
        package, _, leaf = name.rpartition(".")
        sys.modules.pop(name)
        parent: ModuleType | None = sys.modules.get(package)
        if parent is not None and hasattr(parent, leaf):
            delattr(parent, leaf)


def expert_rollouts(folder: Path, noise: float = 0.0) -> list[Rollout]:
    config = load(ExperimentConfig, [folder / "configs" / "experiments" / "guess.yaml"])
    settings, spec = config.environments["guess"].settings, get("guess")
    environment = spec.make(settings)
    tasks = spec.prepare(settings, "train", config.environments["guess"].train_tasks, config.panels.seed)
    assert len(tasks) == config.environments["guess"].train_tasks
    return [play_expert(environment, task, index, noise, spec.max_turns) for index, task in enumerate(tasks)]


def vocabulary_with_the_example(folder: Path) -> Vocabulary:
    """The vocabulary with the two edits that the guide asks for."""
    text = (ROOT / "data" / "vocabulary.yaml").read_text(encoding="utf-8")
    text = text.replace(
        "environments: [alfworld, webshop, dbbench, appworld]",
        "environments: [alfworld, webshop, dbbench, appworld, guess]",
    )
    path = folder / "vocabulary.yaml"
    path.write_text(text, encoding="utf-8")
    return load_vocabulary(path)


def test_the_example_environments_expert_solves_every_task_and_panels_are_disjoint(examples: Path) -> None:
    rollouts = expert_rollouts(examples)
    assert all(rollout.success and rollout.reward == 1.0 for rollout in rollouts)
    assert rollouts == expert_rollouts(examples)
    spec = get("guess")
    panels = [
        spec.prepare(spec.settings_type(), split, 100, seed) for split in ("train", "validation") for seed in (0, 1)
    ]
    train = {task.content_hash for panel in panels[:2] for task in panel}
    assert not train & {task.content_hash for panel in panels[2:] for task in panel}


def test_the_example_environments_replies_are_tagged_by_its_detectors(examples: Path) -> None:
    importlib.import_module("rised.rubrics.detectors.guess")
    judge = RuleJudge(vocabulary_with_the_example(examples), {"guess": DETECTORS["guess"]})
    good = expert_rollouts(examples)[0]
    turn = good.turns[0]
    bad = replace(good, rollout_id="bad", turns=(replace(turn, info={"readable": False}), *good.turns))
    states = {(tag.rollout_id, tag.rubric_id): tag.state for tag in judge.tag([good, bad])}
    assert states[good.rollout_id, "uses_valid_action_format"] is TagState.DEMONSTRATES
    assert states[good.rollout_id, "malformed_action"] is TagState.ABSENT
    assert states["bad", "malformed_action"] is TagState.VIOLATES


def test_the_example_selector_takes_the_hardest_groups_that_carry_a_preference(examples: Path) -> None:
    importlib.import_module("rised.methods.selectors.hardest")
    document = read_plain(examples / "configs" / "methods" / "hardest.yaml")["method"]
    method = Method.from_settings(MethodSettings.model_validate(document), load_vocabulary())
    one = expert_rollouts(examples)[0]
    rewards = {"easy": (1.0, 1.0, 0.0), "hard": (0.0, 0.0, 1.0), "failed": (0.0, 0.0, 0.0), "lost": (None, None, None)}
    groups = [
        PromptGroup(
            name,
            "guess",
            tuple(
                replace(one, rollout_id=f"{name}/{i}", reward=value, reward_valid=value is not None)
                for i, value in enumerate(values)
            ),
        )
        for name, values in rewards.items()
    ]
    chosen = {s.group_id: s.order for s in method.selector.select(groups, 3, step=1, seed=0)}
    assert chosen == {"hard": 0, "easy": 1, "failed": 2, "lost": None}


def test_the_example_without_code_is_dr_grpo(examples: Path) -> None:
    document = read_plain(examples / "configs" / "methods" / "dr_grpo.yaml")["method"]
    terms = Method.from_settings(MethodSettings.model_validate(document), load_vocabulary()).loss_terms()
    assert [(term.name, term.reduction, term.constant_length) for term in terms] == [
        ("rl", Reduction.CONSTANT_LENGTH, 256)
    ]
