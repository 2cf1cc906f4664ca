"""What an experiment asks of a cluster: each rule's resources, and how many device-hours its runs will take.

The Snakefile puts the resources into its rules, so that `snakemake -n` shows them, and prints the summary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rised.config.overlays import compose
from rised.config.source import plain_value
from slurm.site import Site, StageResources, load_site
from stages.grid import Grid
from stages.judge_need import STAGE as JUDGE_SERVER
from stages.judge_need import judge_need, named_judge_need

MINUTES = 60


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of job. ``hours``: of one job, by the experiment's estimate; None where it gives none."""

    name: str
    jobs: int
    to_do: int
    wanted: StageResources
    hours: float | None

    @property
    def gpus(self) -> int:
        return self.wanted.nodes * self.wanted.gpus_per_node

    @property
    def devices(self) -> int:
        """What an hour is counted in: GPUs, or cores where there are none."""
        return self.gpus or self.wanted.nodes * self.wanted.tasks_per_node * self.wanted.cpus_per_task


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment on a cluster. Without one (executor ``direct``) there are no resources and nothing to say."""

    grid: Grid
    site: Site | None
    estimate: Mapping[str, Any]
    updates: int
    validation_every: int

    @classmethod
    def of(cls, grid: Grid) -> Plan:
        """ConfigError if the site file or the experiment's ``resources`` do not hold."""
        document = plain_value(compose([Path(grid.experiment_file)]))
        site = None
        if grid.executor in ("slurm", "local"):
            site = load_site(Path(grid.site), experiment=Path(grid.experiment_file))
        every = (document.get("validation") or {}).get("every", 20)
        return cls(grid, site, document.get("estimate") or {}, int(document.get("updates", 0)), int(every))

    def resources(self, stage: str, parts: int = 1) -> dict[str, int | str]:
        """A rule's resources, ``parts`` of a job array together; the driver itself needs none.

        For those who limit them: ``--resources gpus=64``.
        """
        wanted = self._wanted(stage)
        if self.site is None or wanted is None:
            return {}
        found: dict[str, int | str] = {
            "nodes": wanted.nodes,
            "tasks_per_node": wanted.tasks_per_node,
            "cpus_per_task": wanted.cpus_per_task,
            "gpus": wanted.nodes * wanted.gpus_per_node * min(parts, self.site.array_parallelism),
            "runtime": wanted.time_min,
        }
        for key in ("partition", "qos", "constraint"):
            value = getattr(wanted, key) or getattr(self.site, key)
            if value:
                found[key] = value
        return found

    def note(self, stage: str) -> str:
        """What a rule's message adds about its job; "" without a cluster."""
        wanted = self._wanted(stage)
        if self.site is None or wanted is None:
            return ""
        gpus = f", {wanted.nodes * wanted.gpus_per_node} GPUs" if wanted.gpus_per_node else ""
        where = wanted.partition or self.site.partition
        partition = f", partition {where}" if where else ""
        return f" [{_size(wanted)}{gpus}, {_clock(wanted.time_min)} h{partition}]"

    def _wanted(self, stage: str) -> StageResources | None:
        """None without a cluster, and for a stage that the site has no resources for: it may not be asked for."""
        return self.site.stages.get(stage) if self.site is not None and self.grid.executor == "slurm" else None

    def lines(self) -> list[Line]:
        """The compute jobs of the grid, those that are done among them."""
        grid = self.grid
        assert self.site is not None
        prepare, evaluate, train = (self.site.resources(name) for name in ("prepare", "evaluate", "train"))
        validation_h = self._hours(float(self.estimate.get("validation_s", 0.0)))
        lines = [
            Line("prepare", 1, int(not Path(grid.tasks).exists()), prepare, None),
            Line("evaluate", 1, int(not Path(grid.warm_start).exists()), evaluate, validation_h),
        ]
        for method in grid.methods:
            runs = [Path(grid.run_pattern.format(method=method, seed=seed)) for seed in grid.seeds]
            missing = sum(not run.exists() for run in runs)
            lines.append(Line(f"train {method}", len(runs), missing, train, self._run_hours(method)))
        for stage, pattern in grid.measured.items():
            runs = [Path(pattern.format(method=m, seed=s)) for m in grid.methods for s in grid.seeds]
            to_do = sum(not run.exists() for run in runs)
            lines.append(Line(stage, len(runs), to_do, self.site.resources(stage), None))
        if retags := self._retag_marks():
            to_do = sum(not Path(mark).exists() for mark in retags)
            lines.append(Line("retag by judges", len(retags), to_do, self.site.resources("retag"), None))
        if grid.audits:
            to_do = sum(not Path(mark).exists() for mark in grid.audits)
            lines.append(Line("audit_judge", len(grid.audits), to_do, self.site.resources("audit_judge"), None))
        for judge in dict.fromkeys((*grid.audited_judges, *grid.retagging_judges)):
            if (need := named_judge_need(judge)) is not None:
                marks = [*grid.audits, *self._retag_marks()]
                to_do = int(any(f"/{judge}/" in mark and not Path(mark).exists() for mark in marks))
                serves = load_site(Path(grid.site), experiment=Path(grid.experiment_file), judge=need.config)
                lines.append(Line(f"{JUDGE_SERVER} {judge}", 1, to_do, serves.resources(JUDGE_SERVER), None))
        judged = [line for line in lines if line.name.startswith("train ") and self._is_judged(line.name[6:])]
        if judged:
            waiting = [line.hours for line in judged if line.to_do and line.hours is not None]
            hours = max(waiting, default=None)
            to_do = int(any(line.to_do for line in judged))
            lines.append(Line(JUDGE_SERVER, 1, to_do, self.site.resources(JUDGE_SERVER), hours))
        return lines

    def _retag_marks(self) -> list[str]:
        grid = self.grid
        return [mark for method in grid.methods for seed in grid.seeds for mark in grid.retags_of(method, seed)]

    def summary(self) -> str:
        """The jobs as a table, and their device-hours; "" without a cluster."""
        if self.site is None or self.grid.executor != "slurm":
            return ""
        lines = self.lines()
        rows = [("job", "jobs", "to do", "size", "GPUs", "limit", "hours each", "device-hours to do")]
        for line in lines:
            size, limit = _size(line.wanted), _clock(line.wanted.time_min)
            each = "" if line.hours is None else f"{line.hours:,.1f}"
            total = "" if line.hours is None else f"{line.to_do * line.hours * line.devices:,.0f}"
            rows.append((line.name, str(line.jobs), str(line.to_do), size, str(line.gpus), limit, each, total))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
        head = f"{self.grid.name} on Slurm ({self.grid.site}):"
        return "\n".join([head, *(f"  {row}" for row in table), self._total(lines), ""])

    def _total(self, lines: list[Line]) -> str:
        if not self.estimate:
            return "  No estimate of device-hours: the experiment has no `estimate`."
        known = [line for line in lines if line.hours is not None]
        hours = sum(line.to_do * (line.hours or 0.0) * line.devices for line in known)
        unit = "GPU-hours" if any(line.gpus for line in known) else "core-hours"
        text = f"  About {hours:,.0f} {unit} to do, by {self.estimate.get('source', 'the experiment')}"
        text += "; a job longer than its limit goes on in the next."
        if any(line.name == JUDGE_SERVER for line in known):
            text += "\n  The judge's server is counted as long as its longest run, as if all ran side by side."
        return text

    def _is_judged(self, method: str) -> bool:
        return judge_need(Path(self.grid.experiment_file), method) is not None

    def _run_hours(self, method: str) -> float | None:
        step_s = (self.estimate.get("step_s") or {}).get(method)
        if step_s is None:
            return None
        validations = -(-self.updates // self.validation_every)
        return self._hours(self.updates * float(step_s) + validations * float(self.estimate.get("validation_s", 0.0)))

    def _hours(self, seconds: float) -> float | None:
        return seconds / 3600 if seconds else None


def _size(wanted: StageResources) -> str:
    nodes = f"{wanted.nodes} nodes x " if wanted.nodes > 1 else ""
    tasks = f"{wanted.tasks_per_node} tasks x " if wanted.tasks_per_node > 1 else ""
    return f"{nodes}{tasks}{wanted.cpus_per_task} cores"


def _clock(minutes: int) -> str:
    return f"{minutes // MINUTES}:{minutes % MINUTES:02d}"
