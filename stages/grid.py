"""From an experiment file to the runs it spans and the files they leave: what the Snakefile plans with.

Import-light: planning a grid needs no torch and no environment. ``read_grid`` looks only at the grid's own keys; a
stage validates the whole file before it starts.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rised.config import ConfigError
from rised.config.overlays import compose
from rised.config.paths import check_results_path, shipped
from rised.config.source import plain_value, written_in
from rised.outputs import AnalysisSettings

Entry = TypeVar("Entry")
EXPERIMENTS = Path("configs/experiments")
METHODS = Path("configs/methods")
JUDGES = Path("configs/judges")
SELECTORS = "configs/selectors.yaml"
ANALYSIS = Path("analysis")
ANALYSIS_TARGETS = frozenset({"tables", "figures", "report", "publish", "verify"})
"""Targets of the Snakefile that need finished runs and no training."""
STORED_TARGETS = frozenset({"retag", "reselect"})
"""Targets that look again at what finished runs hold, and take those that are there."""
EXECUTORS = ("direct", "slurm", "local", "debug")


@dataclass(frozen=True, slots=True)
class Grid:
    """An experiment's runs and the paths of its products.

    ``runs``: where finished runs are read from. ``extended_files``: documents that the experiment's file extends.
    ``tables``, ``figures``: modules of the analysis by name. ``gradient``, ``second_tags``: what is measured on
    finished runs. ``audited_judges``: judges that are compared with the detectors on them. ``checkpoints``: how many
    each run exports. ``verified``: a dataset from elsewhere, for ``verify``. ``retagging_judges``: judges that tag
    finished runs again; ``selectors``: what is replayed on them, empty for all; ``reselects``: the analysis wants it.
    """

    name: str
    experiment_file: str
    results: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    external_runs: str | None
    tables: tuple[str, ...]
    figures: tuple[str, ...]
    gradient: bool = False
    second_tags: bool = False
    audited_judges: tuple[str, ...] = ()
    checkpoints: int = 1
    extended_files: tuple[str, ...] = ()
    executor: str = "direct"
    site: str = "slurm/site.yaml"
    verified: str | None = None
    retagging_judges: tuple[str, ...] = ()
    selectors: tuple[str, ...] = ()
    reselects: bool = False

    def method_files(self, method: str) -> list[str]:
        """The method's file and those that it extends; nothing if there is none, which the train stage says better."""
        path = shipped(METHODS / f"{method}.yaml")
        if not path.is_file():
            return []
        return sorted({str(path), *(os.path.relpath(name) for name in written_in(compose([path])))})

    def launch(
        self,
        stage: str,
        name: str,
        *,
        resumes: bool = False,
        method: str = "",
        judge: str = "",
        lingers: bool = False,
        parts: int = 1,
    ) -> str:
        """What stands before a stage's command in a rule's shell: the launcher of jobs, or nothing for a direct call.

        ``name``: of the job; it, ``method`` and ``judge`` may hold the rule's wildcards as ``{wildcards.x}``.
        ``resumes``: the stage goes on where it was stopped, so that a time limit is no failure. ``method``: of a run
        that may need the judge's server; ``judge``: name or file of a judge that the stage asks itself; ``lingers``:
        its server stays a while, since another stage follows that asks it. ``parts``: of a job array.
        """
        if self.executor == "direct":
            return ""
        options = " --resumes" if resumes else ""
        options += f" --judge-of {method}" if method else ""
        options += f" --judge {judge}" if judge else ""
        options += " --lingers" if lingers else ""
        options += f" --parts {parts}" if parts > 1 else ""
        return (
            f"python -m slurm.launch --executor {self.executor} --site {shlex.quote(self.site)} --stage {stage}"
            f" --name {self.name}-{name} --folder {shlex.quote(self.logs)}/jobs/{name}"
            f" --experiment {shlex.quote(self.experiment_file)}{options}"
            " --input {input:q} --output {output:q} -- "
        )

    def keeps(self, product: str, asked: Iterable[str]) -> bool:
        """Whether a stage's product is kept although its inputs may be younger: it is there, and only the analysis is
        asked for. Products that several runs share are kept once every run is finished: the others still need them.
        Where only finished runs are looked at again, all that they were made from is kept, there or not.
        """
        targets = list(asked)
        if targets and STORED_TARGETS.issuperset(targets):
            return product not in (*self.retags, *self.reselections)
        only_analysis = bool(targets) and all(
            target in ANALYSIS_TARGETS or target.startswith((f"{self.analysis}/", f"{self.dataset}/"))
            for target in targets
        )
        shared = product in (self.tasks, self.warm_start)
        needed = [product, *(self.finished_runs if shared else [])]
        return only_analysis and all(Path(path).is_file() for path in needed)

    @property
    def selectors_file(self) -> str:
        return str(shipped(SELECTORS))

    @property
    def folder(self) -> str:
        """The experiment's results folder."""
        return f"{self.results}/{self.name}"

    @property
    def runs(self) -> str:
        """Folder below which the analysis looks for runs."""
        return self.external_runs or self.folder

    @property
    def logs(self) -> str:
        return f"{self.folder}/logs"

    @property
    def tasks(self) -> str:
        return f"{self.folder}/tasks.parquet"

    @property
    def warm_start(self) -> str:
        """Mark that the warm start's validation is there."""
        return f"{self.folder}/warm_start/DONE"

    @property
    def run_pattern(self) -> str:
        return f"{self.folder}/{{method}}/seed-{{seed}}/DONE"

    @property
    def finished_runs(self) -> list[str]:
        """DONE of every run; nothing when runs from elsewhere are analysed."""
        if self.external_runs is not None:
            return []
        return [self.run_pattern.format(method=m, seed=s) for m in self.methods for s in self.seeds]

    @property
    def gradient_pattern(self) -> str:
        return f"{self.folder}/{{method}}/seed-{{seed}}/gradient_signal/DONE"

    @property
    def second_tags_pattern(self) -> str:
        return f"{self.folder}/{{method}}/seed-{{seed}}/second_tags/DONE"

    @property
    def audit_pattern(self) -> str:
        return f"{self.folder}/{{method}}/seed-{{seed}}/audit/{{judge}}/DONE"

    @property
    def audits(self) -> list[str]:
        """DONE of every audit of a run and a judge."""
        return [
            self.audit_pattern.format(method=method, seed=seed, judge=judge)
            for judge in self.audited_judges
            for method in self.methods
            for seed in self.seeds
        ]

    @property
    def retag_pattern(self) -> str:
        return f"{self.folder}/{{method}}/seed-{{seed}}/retags/{{judge}}/DONE"

    @property
    def reselect_pattern(self) -> str:
        return f"{self.folder}/{{method}}/seed-{{seed}}/reselected/DONE"

    def retags_of(self, method: str, seed: str | int) -> list[str]:
        """DONE of a run's tags by each further judge."""
        return [self.retag_pattern.format(method=method, seed=seed, judge=judge) for judge in self.retagging_judges]

    @property
    def retags(self) -> list[str]:
        """DONE of the tags of every finished run by every further judge."""
        return [mark for method, seed in self._stored_runs for mark in self.retags_of(method, seed)]

    @property
    def reselections(self) -> list[str]:
        """DONE of the replayed selections of every finished run."""
        return [self.reselect_pattern.format(method=method, seed=seed) for method, seed in self._stored_runs]

    @property
    def _stored_runs(self) -> list[tuple[str, int]]:
        """Runs of the experiment that are finished now, by method and seed."""
        return [
            (method, seed)
            for method in self.methods
            for seed in self.seeds
            if Path(self.run_pattern.format(method=method, seed=seed)).is_file()
        ]

    def stored_products(self, target: str) -> list[str]:
        """What ``retag`` or ``reselect`` makes of the finished runs; ConfigError where there is nothing to do it on."""
        if self.external_runs is not None:
            raise ConfigError(
                f"{target} works on the experiment's own runs, not on runs={self.external_runs}: give `results`, or "
                "call the stage with --run"
            )
        if target == "retag" and not self.retagging_judges:
            raise ConfigError(
                "retag: which judge? --config judge=NAME, a file of configs/judges or `rules` (or `reselect.judges` in "
                "the experiment)"
            )
        found = self.retags if target == "retag" else self.reselections
        if not found:
            raise ConfigError(f"{target}: {self.folder} holds no finished run: run the experiment first")
        return found

    def judge_files(self, judge: str) -> list[str]:
        """The judge's file, and nothing if there is none: the audit says that better."""
        path = shipped(JUDGES / f"{judge}.yaml")
        return [str(path)] if path.is_file() else []

    @property
    def measured(self) -> dict[str, str]:
        """Stage that measures something on finished runs -> pattern of its product."""
        stages = [
            ("gradient", self.gradient, self.gradient_pattern),
            ("retag", self.second_tags, self.second_tags_pattern),
            ("select", self.reselects, self.reselect_pattern),
        ]
        return {stage: pattern for stage, wanted, pattern in stages if wanted}

    @property
    def analysed_files(self) -> list[str]:
        """What tables and figures are made from: the finished runs, and what is measured on them."""
        if self.external_runs is not None:
            return []
        return (
            self.finished_runs
            + [
                pattern.format(method=method, seed=seed)
                for pattern in self.measured.values()
                for method in self.methods
                for seed in self.seeds
            ]
            + self.audits
        )

    @property
    def analysis(self) -> str:
        return f"{self.folder}/analysis"

    @property
    def table_files(self) -> list[str]:
        return [f"{self.analysis}/tables/{name}.csv" for name in self.tables]

    @property
    def figure_files(self) -> list[str]:
        return [f"{self.analysis}/figures/{name}.png" for name in self.figures]

    @property
    def report(self) -> str:
        return f"{self.analysis}/report.html"

    @property
    def dataset(self) -> str:
        """Folder of the published form of the runs."""
        return f"{self.folder}/dataset"

    @property
    def dataset_sums(self) -> str:
        """The dataset's last file."""
        return f"{self.dataset}/SHA256SUMS"


def read_grid(options: Mapping[str, Any]) -> Grid:
    """The grid that Snakemake's ``--config experiment=NAME results=DIR runs=DIR dataset=DIR judge=NAMES
    selectors=NAMES executor=NAME site=FILE`` asks for; several names are separated by commas.

    Raises ConfigError for an unknown experiment, executor or judge, or a results path that batch jobs cannot carry.
    """
    name = str(options.get("experiment", "quickstart"))
    results = str(check_results_path(str(options.get("results", "results"))))
    if results.startswith("-"):
        results = f"./{results}"  # commands would take it for an option
    if "{" in results or "}" in results:
        raise ConfigError(f"brace in the results path {results!r}: choose a folder without it (a wildcard's mark)")
    path = shipped(EXPERIMENTS / f"{name}.yaml")
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in shipped(EXPERIMENTS).glob("*.yaml"))) or "none"
        raise ConfigError(f"there is no experiment {name!r} in {EXPERIMENTS}: choose one of {known}")
    tree = compose([path])
    document = plain_value(tree)
    runs = options.get("runs")
    executor = str(options.get("executor", "direct"))
    if executor not in EXECUTORS:
        raise ConfigError(f"there is no executor {executor!r}: choose one of {', '.join(EXECUTORS)}")
    reselect = document.get("reselect") or {}
    return Grid(
        name=document["experiment"],
        experiment_file=str(path),
        results=results,
        methods=_distinct("methods", (str(method) for method in document["methods"])),
        seeds=_distinct("seeds", (int(seed) for seed in document.get("seeds", [0]))),
        external_runs=None if runs is None else str(runs),
        tables=_modules(document, "tables"),
        figures=_modules(document, "figures"),
        gradient=document.get("gradient") is not None,
        second_tags=document.get("second_tags") is True,
        audited_judges=_distinct("audit.judges", (document.get("audit") or {}).get("judges") or ()),
        checkpoints=_checkpoints(document),
        extended_files=tuple(sorted({os.path.relpath(name) for name in written_in(tree)} - {str(path)})),
        executor=executor,
        site=str(shipped(str(options.get("site", "slurm/site.yaml")))),
        verified=None if options.get("dataset") is None else str(options["dataset"]),
        retagging_judges=_judges(options.get("judge", reselect.get("judges", ()))),
        selectors=_names(options.get("selectors", reselect.get("selectors", ()))),
        reselects=document.get("reselect") is not None,
    )


def _distinct(key: str, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries; ConfigError naming the key and an entry that is there twice."""
    found = tuple(entries)
    for place, entry in enumerate(found):
        if entry in found[:place]:
            raise ConfigError(f"{key}: {entry!r} appears twice; name each entry once")
    return found


def _names(given: Any) -> tuple[str, ...]:
    """Names as a list or as one text with commas."""
    names = given.split(",") if isinstance(given, str) else list(given or ())
    return tuple(dict.fromkeys(str(name).strip() for name in names if str(name).strip()))


def _judges(given: Any) -> tuple[str, ...]:
    """Judges by name; ConfigError for one without a file."""
    names = _names(given)
    for name in names:
        if name != "rules" and not shipped(JUDGES / f"{name}.yaml").is_file():
            known = ", ".join(["rules", *sorted(path.stem for path in shipped(JUDGES).glob("*.yaml"))])
            raise ConfigError(f"judge={name}: there is no judge file {JUDGES / name}.yaml; choose one of {known}")
    return names


def _checkpoints(document: Mapping[str, Any]) -> int:
    """The last update is always exported."""
    updates, every = int(document["updates"]), int(document.get("export_every", 0))
    return -(-updates // every) if every else 1


def _modules(document: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """The experiment's tables or figures by name; ConfigError for one that has no module."""
    default = getattr(AnalysisSettings(), kind)
    chosen = (document.get("analysis") or {}).get(kind, default)
    names = _distinct(f"analysis.{kind}", (str(name) for name in chosen))
    for name in names:
        modules = shipped(ANALYSIS / kind)
        if not (modules / f"{name}.py").is_file():
            known = sorted(p.stem for p in modules.glob("*.py") if p.stem not in ("__init__", "command"))
            raise ConfigError(
                f"analysis.{kind}: there is no module {ANALYSIS / kind / name}.py; see {', '.join(known)}"
            )
    return names
