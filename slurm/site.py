"""What a user tells about the cluster: one file with the account, partitions and each stage's resources."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

from rised.config import ConfigError, Settings, operational
from rised.config.loader import bind
from rised.config.overlays import compose, merge
from rised.config.source import Mapping, Origin


class StageResources(Settings):
    """What one job of a stage asks for. Unset texts take the site's."""

    time_min: int = operational(60, gt=0, description="Time limit of a job in minutes; train goes on in the next job.")
    nodes: int = operational(1, ge=1, description="Nodes of a job.")
    tasks_per_node: int = operational(1, ge=1, description="Processes on each node; each gets its rank.")
    cpus_per_task: int = operational(2, ge=1, description="Cores of a process.")
    gpus_per_node: int = operational(0, ge=0, description="GPUs on each node.")
    memory_gb: float | None = operational(8.0, gt=0, description="Memory of a node; null: the partition's default.")
    partition: str | None = operational(None, description="Another partition than the site's.")
    qos: str | None = operational(None, description="Another quality of service than the site's.")
    constraint: str | None = operational(None, description="Another node feature than the site's.")


class Site(Settings):
    """A cluster, as seen by its user."""

    partition: str | None = operational(None, description="Partition; null: the cluster's default.")
    account: str | None = operational(None, description="Account that is charged.")
    qos: str | None = operational(None, description="Quality of service.")
    constraint: str | None = operational(None, description="Node feature, for example h100.")
    gpu_type: str | None = operational(None, description="Type in --gres=gpu:TYPE:N; null: any.")
    setup: list[str] = operational([], description="Shell lines before the job's command: modules, scratch folders.")
    python: str | None = operational(
        None, description="Command that starts Python in a job, for example in a container; null: the launcher's own."
    )
    sbatch: dict[str, str] = operational({}, description="Further sbatch options by their long names.")
    signal_delay_s: int = operational(120, ge=10, description="Seconds before the time limit at which USR2 comes.")
    finish_step_s: int = operational(
        90, ge=0, description="Seconds that a stage has to end its step after USR2; then it is killed."
    )
    most_timeouts: int = operational(1000, ge=0, description="Time limits that a job may run into and go on.")
    rendezvous_address: str | None = operational(
        None, description="Address of the first node for jobs of several processes; null: its host name."
    )
    poll_s: float = operational(5.0, gt=0, description="Seconds between two looks at the queue.")
    lost_after_s: float = operational(
        90.0, ge=0, description="Seconds for which a job may be unknown to Slurm and without result before it is lost."
    )
    service_linger_s: float = operational(
        300.0, ge=0, description="Seconds after which a server that nobody needs any more ends itself."
    )
    array_parallelism: int = operational(256, gt=0, description="Parts of a job array that run at a time.")
    stages: dict[str, StageResources] = operational(description="Resources by stage name.")

    @model_validator(mode="after")
    def _a_step_may_end_before_the_limit(self) -> Site:
        if self.finish_step_s >= self.signal_delay_s:
            raise ValueError(
                f"finish_step_s ({self.finish_step_s}) must be less than signal_delay_s ({self.signal_delay_s}): "
                "after it the job is requeued, before its limit"
            )
        return self

    def resources(self, stage: str) -> StageResources:
        """The stage's resources. ConfigError, with the nearest name, if the file has none."""
        if stage not in self.stages:
            near = difflib.get_close_matches(stage, self.stages, n=1)
            advice = f"; did you mean {near[0]!r}?" if near else f": add stages.{stage}"
            raise ConfigError(f"the site file has no resources for stage {stage!r}{advice}")
        return self.stages[stage]


def load_site(
    path: Path, overrides: Sequence[str] = (), experiment: Path | None = None, judge: Path | None = None
) -> Site:
    """The site file, validated; ConfigError names file, key and nearest valid key.

    ``experiment``: a file whose ``resources`` say what jobs of its stages need; they win over the site's ``stages``.
    ``judge``: the file of a judge that the experiment does not train with; its ``resources`` win over both.
    """
    site = compose([path], overrides)
    for file in (experiment, judge):
        wanted = None if file is None else compose([file]).items.get("resources")
        if wanted is not None and not (isinstance(wanted, Mapping) and not wanted.items):
            site = merge(site, Mapping({"stages": wanted}, {"stages": Origin(str(file))}, Origin(str(file))))
    return bind(Site, site)


def executor_parameters(site: Site, stage: str, job_name: str) -> dict[str, Any]:
    """submitit's parameters for a job of ``stage``: common ones and those of Slurm (``slurm_…``)."""
    wanted = site.resources(stage)
    options: dict[str, Any] = {"requeue": True, **site.sbatch}
    if wanted.gpus_per_node:
        options["gres"] = ":".join(["gpu", *([site.gpu_type] if site.gpu_type else []), str(wanted.gpus_per_node)])
    chosen = {
        "partition": wanted.partition or site.partition,
        "account": site.account,
        "qos": wanted.qos or site.qos,
        "constraint": wanted.constraint or site.constraint,
    }
    parameters: dict[str, Any] = {
        "name": job_name,
        "timeout_min": wanted.time_min,
        "nodes": wanted.nodes,
        "tasks_per_node": wanted.tasks_per_node,
        "cpus_per_task": wanted.cpus_per_task,
        "stderr_to_stdout": True,
        "slurm_signal_delay_s": site.signal_delay_s,
        "slurm_array_parallelism": site.array_parallelism,
        # srun of a batch script does not inherit it (Slurm 22.05 and later)
        "slurm_srun_args": [f"--cpus-per-task={wanted.cpus_per_task}", "--kill-on-bad-exit=1"],
        "slurm_additional_parameters": options,
    }
    if wanted.memory_gb is not None:
        parameters["mem_gb"] = wanted.memory_gb
    if site.setup:
        parameters["slurm_setup"] = list(site.setup)
    return parameters | {f"slurm_{key}": value for key, value in chosen.items() if value is not None}
