"""The processes of one job: where this one stands among them, and how it talks to the others.

Processes find each other by torch's rendezvous variables (RANK, WORLD_SIZE, MASTER_ADDR, ...), which the Slurm launcher
and torchrun both set. Without them a run is one process and nothing here costs anything.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rised.config import ConfigError
from rised.learner.ranks import ALONE, LearnerRanks, process_backend
from stages.attempts import PEER_LOST

if TYPE_CHECKING:
    from stages.job_group import JobGroup

Value = TypeVar("Value")
BROKEN = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""What gloo says when another process is gone."""
LONGEST_WAIT = datetime.timedelta(days=7)
"""A process waits for the driver through whole validations. One that dies is noticed by its closed connection."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which of ``size`` ranks on nodes of ``per_node`` each play episodes and which learn.

    Without ``rollout_nodes`` every rank does both; otherwise the last so many nodes only play, the others only learn.
    Rank 0 always learns: it writes the run directory.
    """

    size: int = 1
    per_node: int = 1
    rollout_nodes: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.per_node < 1 or self.size % self.per_node:
            raise ConfigError(f"a job of {self.size} processes, {self.per_node} on each node: nodes must be alike")
        if self.rollout_nodes >= self.nodes and self.rollout_nodes:
            raise ConfigError(
                f"placement.rollout_nodes is {self.rollout_nodes} in a job of {self.nodes} nodes, one of which has to "
                "learn: raise resources.train.nodes, or lower placement.rollout_nodes"
            )

    @property
    def nodes(self) -> int:
        return self.size // self.per_node

    @property
    def learners(self) -> tuple[int, ...]:
        return tuple(range(self.size - self.rollout_nodes * self.per_node))

    @property
    def players(self) -> tuple[int, ...]:
        """Ranks that play episodes."""
        return tuple(range(len(self.learners) if self.rollout_nodes else 0, self.size))


class Ranks:
    """One rank of a job. A context manager: the driver's (rank 0) end ends the others with the same exit code."""

    def __init__(self, rank: int, layout: Layout) -> None:
        self.rank, self.layout = rank, layout
        self.learner = ALONE
        self._group: JobGroup | None = None
        self._store: Any = None

    @classmethod
    def of_job(cls, rollout_nodes: int = 0, variables: Mapping[str, str] = os.environ) -> Ranks:
        """As the environment's variables say. ConfigError if the job has too few nodes for ``rollout_nodes``."""
        size = int(variables.get("WORLD_SIZE", "1"))
        layout = Layout(size, int(variables.get("LOCAL_WORLD_SIZE", str(size))), rollout_nodes)
        return cls(int(variables.get("RANK", "0")), layout)

    @property
    def drives(self) -> bool:
        """Whether this process decides what all do and writes the records."""
        return self.rank == 0

    @property
    def learns(self) -> bool:
        return self.rank in self.layout.learners

    @property
    def plays(self) -> bool:
        return self.rank in self.layout.players

    def __enter__(self) -> Ranks:
        if not self.drives:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # whether to stop is the driver's to decide
        if self.layout.size > 1:
            import torch.distributed as distributed

            from stages.job_group import JobGroup

            size = self.layout.size
            self._store, _, _ = next(distributed.rendezvous("env://", self.rank, size, timeout=LONGEST_WAIT))
            self._group = JobGroup(self._store, self.rank, size, LONGEST_WAIT)
            if self.learns:
                index, count = self.layout.learners.index(self.rank), len(self.layout.learners)
                meeting = distributed.PrefixStore("learners", self._store)
                distributed.init_process_group(
                    process_backend(), store=meeting, rank=index, world_size=count, timeout=LONGEST_WAIT
                )
                self.learner = LearnerRanks(index, count, distributed.group.WORLD)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._group is None:
            return
        if isinstance(error, RuntimeError) and any(words in str(error) for words in BROKEN):
            print(f"process {self.rank}: the connection to another process broke: {error}", file=sys.stderr, flush=True)
            os._exit(PEER_LOST)  # the group's own threads would wait for the dead
        if error is None or isinstance(error, SystemExit):
            if self.drives:
                self.share(Order("end", (0 if error is None else error.code,)))
            self._group = None
            if self.learns:
                import torch.distributed as distributed

                distributed.destroy_process_group()

    def share(self, value: Value | None) -> Value:
        """The driver's value, on every rank."""
        if self._group is None:
            assert value is not None
            return value
        return self._group.share(value)

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value in rank order on the driver; on the others only their own."""
        return [value] if self._group is None else self._group.gather(value)

    def share_tensors(self, tensors: list[Any]) -> None:
        """Overwrite the tensors of every rank by the driver's."""
        if self._group is not None:
            self._group.share_tensors(tensors)


@dataclass(frozen=True, slots=True)
class Order:
    """What the driver asks every rank to do: a name and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()
