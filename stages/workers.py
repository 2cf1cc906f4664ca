"""The worker group of a run: every process holds the policy, some play episodes, some learn, the first one drives.

The driver calls :meth:`WorkerGroup.collect` and :meth:`WorkerGroup.update` as if it were alone; the other processes
stand in :meth:`WorkerGroup.follow` and do their share of each; who plays an episode also has it judged. How episodes
are cut into batches does not depend on the number of processes, so that the same weights give the same rollouts to the
last bit; the gradient's sums differ in their last bits.

A batch may be begun and finished by two calls, with others between: each process plays its share in a thread meanwhile,
which makes no collective call, so that all processes go through the same calls in the same order. Batches that are
begun while another is played follow it, each with the weights that were handed over last before it was begun.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
from transformers import PreTrainedModel

from rised.environments.base import Task
from rised.experiment import RunConfig, RunSettings
from rised.learner.backends import make_learner
from rised.learner.learner import Learner
from rised.learner.state import Snapshot, describe, read_weights
from rised.learner.types import TrainingSequence, UpdateReport
from rised.methods.streams import LossTerm
from rised.models.loading import load_policy
from rised.models.rendering import ChatRendering
from rised.models.writing import WritingRequest, Written, write
from rised.records.types import Rollout
from rised.rollouts.episodes import CollectionRequest, CollectTimings, OnRollout, Progress, collect_rollouts
from rised.rollouts.plans import EpisodePlan, share_of
from rised.rollouts.rules import prompt_tokens
from rised.rollouts.settings import RolloutSettings
from rised.rubrics.base import RubricError
from rised.rubrics.judge_llm import Judgement
from rised.rubrics.judge_record import JudgeCounters
from rised.rubrics.judge_stream import Streamed
from stages.background import BackgroundPlay
from stages.own_tags import OwnTags, Played, Tagged
from stages.policy import Policy, open_policy
from stages.ranks import Order, Ranks
from stages.setup import open_pool


class WorkerGroup:
    """This process's part of the group, and on the driver the whole. Use as a context manager."""

    def __init__(self, config: RunSettings, ranks: Ranks, terms: Sequence[LossTerm] = ()) -> None:
        """``terms``: of the loss, for a run that learns; such a run's ``config`` is a RunConfig."""
        self.config, self.ranks, self.terms = config, ranks, terms
        self.policy: Policy = open_policy(config, plays=ranks.plays)
        self._learner = self._make_learner(config) if isinstance(config, RunConfig) and ranks.learns else None
        if self._learner is None and config.learner.threads is not None:
            torch.set_num_threads(config.learner.threads)
        self._pool: Any = None
        self._played: BackgroundPlay[Played] = BackgroundPlay(config.learner.threads)
        self._waiting_weights: tuple[PreTrainedModel, int] | None = None
        self._snapshot: Snapshot | None = None
        self._tags = OwnTags(config.rubrics, len(ranks.layout.players))
        self._renderings: dict[tuple[tuple[str, str | bool], ...], ChatRendering] = {}
        self._stack = ExitStack()

    def _make_learner(self, config: RunConfig) -> Learner:
        reference = load_policy(config.model)[0] if config.method.kl.coefficient > 0 else None
        # a learner that shards or rounds its weights gets a model of its own; the engine plays with a whole copy. So
        # does one that learns while the engine plays, unless that has a copy already
        lags = config.pipeline.lag > 0 and self.ranks.plays and not self.policy.engine.copies_weights
        in_place = config.learner.trains_in_place and not lags
        model = self.policy.model if in_place else load_policy(config.model)[0]
        return make_learner(
            model,
            reference,
            config.learner,
            temperature=config.rollout.temperature,
            ranks=self.ranks.learner,
        )

    def __enter__(self) -> WorkerGroup:
        if self.ranks.plays:
            self._stack.enter_context(self.policy.engine)
            self._pool = self._stack.enter_context(open_pool(self.config))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._played.close()
        self._tags.close()
        self._stack.__exit__(kind, error, trace)

    @property
    def learner(self) -> Learner:
        """This process's learner; only where it learns."""
        assert self._learner is not None
        return self._learner

    # -- the driver's calls

    def system_prompts(self) -> dict[str, str]:
        """Each environment's instructions."""
        return next(found for found in self._everywhere("system_prompts") if found)

    def prompt_tokens(self, tasks: Sequence[Task]) -> dict[str, list[int]]:
        """See :func:`rised.rollouts.rules.prompt_tokens`; before anything is begun."""
        return next((found for found in self._everywhere("prompt_tokens", tuple(tasks)) if found), {})

    def collect(
        self, plans: Sequence[EpisodePlan], settings: RolloutSettings, on_progress: Progress | None = None
    ) -> tuple[list[Rollout], CollectTimings]:
        """One rollout per plan, in their order, and the times of the slowest process (tokens: of all).

        ``on_progress`` hears of this process's own episodes only.
        """
        return self._whole(plans, self._everywhere("collect", tuple(plans), settings, mine=(on_progress,)))

    def collect_judged(
        self, plans: Sequence[EpisodePlan], settings: RolloutSettings
    ) -> tuple[list[Rollout], CollectTimings, Streamed]:
        """The same, each rollout judged by the process that played it, the moment its episode ended.

        Judgements in the order of the plans. RubricError when the judge's server refuses the key or the model.
        """
        return self._whole_judged(plans, self._everywhere("collect_judged", tuple(plans), settings))

    def begin_collect(self, plans: Sequence[EpisodePlan], settings: RolloutSettings, judged: bool) -> None:
        """Begin one of the two and return at once; it is played after what was begun before it."""
        self._everywhere("begin_collect", tuple(plans), settings, judged)

    def finish_collect(self, plans: Sequence[EpisodePlan]) -> tuple[list[Rollout], CollectTimings]:
        """Wait until what :meth:`begin_collect` began first, with these plans, is played; the rollouts in their order.

        Their judgements, if they were asked for, are still :meth:`finish_tags`'s. RubricError as
        :meth:`collect_judged`.
        """
        found: list[Played] = self._everywhere("finish_collect")
        _raise_first(played.error for played in found)
        return self._whole(plans, found)

    def finish_tags(self, rollouts: Sequence[Rollout]) -> Streamed:
        """Wait for the judgements of a collection that is finished, in the order of its rollouts.

        The next one may be under way. RubricError as :meth:`collect_judged`.
        """
        found: list[Tagged | RubricError | None] = self._everywhere("finish_tags")
        _raise_first(share for share in found if isinstance(share, RubricError))
        shares = [share for share in found if isinstance(share, Tagged)]
        return _joined(rollouts, shares, max((share.judged.wait_s for share in shares), default=0.0))

    def _whole_judged(
        self, plans: Sequence[EpisodePlan], found: Sequence[Played]
    ) -> tuple[list[Rollout], CollectTimings, Streamed]:
        _raise_first(played.error for played in found)
        rollouts, timings = self._whole(plans, found)
        judged = [(played, played.judged) for played in found if played.judged is not None]
        last = max(played.timings.wall_s + streamed.wait_s for played, streamed in judged)
        shares = [Tagged(tuple(r.rollout_id for r in played.rollouts), streamed) for played, streamed in judged]
        return rollouts, timings, _joined(rollouts, shares, last - timings.wall_s)

    def _whole(self, plans: Sequence[EpisodePlan], found: Sequence[Played]) -> tuple[list[Rollout], CollectTimings]:
        by_id = {rollout.rollout_id: rollout for played in found for rollout in played.rollouts}
        timings = [played.timings for played in found]
        slowest = max(timings, key=lambda timing: timing.wall_s)
        total = CollectTimings(
            wall_s=slowest.wall_s,
            generation_s=slowest.generation_s,
            environment_s=slowest.environment_s,
            environment_wait_s=slowest.environment_wait_s,
            tokens_fed=sum(timing.tokens_fed for timing in timings),
            tokens_generated=sum(timing.tokens_generated for timing in timings),
            cancelled=sum(timing.cancelled for timing in timings),
            cancelled_tokens=sum(timing.cancelled_tokens for timing in timings),
        )
        given_up = set() if total.cancelled == 0 else {plan.rollout_id for plan in plans} - by_id.keys()
        return [by_id[plan.rollout_id] for plan in plans if plan.rollout_id not in given_up], total

    def write(self, requests: Sequence[WritingRequest]) -> list[list[Written]]:
        """The current policy's answers, in the order of the requests; which process writes one changes nothing."""
        if not requests:
            return []
        found: list[dict[int, list[Written]]] = self._everywhere("write", tuple(requests))
        by_place = {place: written for share in found for place, written in share.items()}
        return [by_place[place] for place in range(len(requests))]

    def update(self, sequences: Sequence[TrainingSequence], hand_over: bool = True) -> UpdateReport:
        """One optimiser step. ``hand_over``: afterwards every process plays with the new weights."""
        report: UpdateReport = self._everywhere("update", tuple(sequences), hand_over)[0]
        return report

    def hand_over(self) -> None:
        """Let every process play with the learners' present weights: at once, or after what is being played."""
        self._everywhere("hand_over")

    def play_with(self, file: Path, weight_version: int) -> None:
        """Let every process play with the weights of a file: at once, or after what is being played."""
        self._everywhere("play_with", file, weight_version)

    def load_state(self, folder: Path, hand_over: bool = True) -> None:
        """Take over weights, optimiser and counters of ``folder`` everywhere.

        ``hand_over``: every process plays with these weights, too. Otherwise :meth:`play_with` comes before: engine and
        learner may have their weights in the same model.
        """
        self._everywhere("load_state", folder, hand_over)

    def snapshot(self) -> Snapshot:
        """Copies of what a run resumes from; each learner gives its part."""
        self._everywhere("snapshot")
        taken, self._snapshot = self._snapshot, None
        assert taken is not None
        return taken

    def describe(self, folder: Path) -> None:
        """Write of an exported policy all but the weights."""
        describe(folder, self.learner.model, self.policy.tokenizer)

    def _everywhere(self, name: str, *arguments: Any, mine: tuple[Any, ...] = ()) -> list[Any]:
        """Do a thing on all processes; their answers in rank order."""
        if self.ranks.layout.size > 1:
            self.ranks.share(Order(name, arguments))
        return self.ranks.gather(self._do(name)(*arguments, *mine))

    # -- what each process does

    def follow(self) -> NoReturn:
        """Do what the driver orders until it ends, then exit as it does."""
        while True:
            order: Order = self.ranks.share(None)
            if order.name == "end":
                sys.exit(*order.arguments)
            self.ranks.gather(self._do(order.name)(*order.arguments))

    def _do(self, name: str) -> Callable[..., Any]:
        ways: dict[str, Callable[..., Any]] = {
            "system_prompts": self._system_prompts,
            "prompt_tokens": self._prompt_tokens,
            "collect": self._collect,
            "collect_judged": self._collect_judged,
            "begin_collect": self._begin_collect,
            "finish_collect": self._played.join,
            "finish_tags": self._tags.finish,
            "write": self._write,
            "update": self._update,
            "hand_over": self._hand_over,
            "play_with": self._play_with,
            "load_state": self._load_state,
            "snapshot": self._take_snapshot,
        }
        return ways[name]

    def _system_prompts(self) -> dict[str, str]:
        if self._pool is None:
            return {}
        return {name: self._pool.system_prompt(name) for name in self.config.environments}

    def _prompt_tokens(self, tasks: Sequence[Task]) -> dict[str, list[int]]:
        if self._pool is None or self.ranks.rank != self.ranks.layout.players[0]:
            return {}
        return prompt_tokens(self._pool, self.policy.rendering, tasks)

    def _collect(
        self,
        plans: Sequence[EpisodePlan],
        settings: RolloutSettings,
        on_progress: Progress | None = None,
        on_rollout: OnRollout | None = None,
    ) -> Played:
        if self._pool is None:
            return Played([], CollectTimings())
        players = self.ranks.layout.players
        share = share_of(plans, settings.cohort_size, players.index(self.ranks.rank), len(players))
        request = CollectionRequest(share, self.policy.rendering, self._pool, settings, on_progress, on_rollout)
        return Played(collect_rollouts(self.policy.engine, request), request.timings)

    def _begin_collect(self, plans: Sequence[EpisodePlan], settings: RolloutSettings, judged: bool) -> None:
        way = self._play_judged if judged else self._collect
        weights, self._waiting_weights = self._waiting_weights, None

        def play(heed: Callable[[], None]) -> Played:
            if weights is not None:
                self.policy.engine.load_weights(*weights)
            return way(plans, settings, lambda done, count: heed())

        self._played.begin(play)

    def _collect_judged(self, plans: Sequence[EpisodePlan], settings: RolloutSettings) -> Played:
        played = self._play_judged(plans, settings)
        tagged = None if played.error is not None or self._pool is None else self._tags.finish(newest=True)
        if isinstance(tagged, RubricError):
            return Played([], CollectTimings(), error=tagged)
        return played if tagged is None else replace(played, judged=tagged.judged)

    def _play_judged(
        self, plans: Sequence[EpisodePlan], settings: RolloutSettings, on_progress: Progress | None = None
    ) -> Played:
        """Play, and have each rollout judged from its end on; ``OwnTags.finish`` waits for the judgements."""
        if self._pool is None:
            return self._collect(plans, settings)
        return self._tags.play(lambda on_rollout: self._collect(plans, settings, on_progress, on_rollout))

    def _write(self, requests: Sequence[WritingRequest]) -> dict[int, list[Written]]:
        if not self.ranks.plays:
            return {}
        assert not self._played.busy, "an engine serves one thread at a time"
        players = self.ranks.layout.players
        mine = range(players.index(self.ranks.rank), len(requests), len(players))
        return {place: write(self.policy.engine, self._rendering(requests[place]), requests[place]) for place in mine}

    def _rendering(self, request: WritingRequest) -> ChatRendering:
        """The episodes' chat rendering, or one with the request's own template arguments."""
        if not request.template_arguments:
            return self.policy.rendering
        key = tuple(sorted(request.template_arguments.items()))
        if key not in self._renderings:
            model = self.config.model
            self._renderings[key] = ChatRendering(
                self.policy.tokenizer,
                system_in_user_turn=model.system_in_user_turn,
                template_arguments={**model.template_arguments, **request.template_arguments},
            )
        return self._renderings[key]

    def _update(self, sequences: Sequence[TrainingSequence], hand_over: bool) -> UpdateReport | None:
        report = None if self._learner is None else self._learner.update(sequences, self.terms)
        if hand_over:
            self._hand_over()
        return report

    def _load_state(self, folder: Path, hand_over: bool) -> None:
        if self._learner is not None:
            self._learner.load_state(folder)
        if hand_over:
            self._hand_over()

    def _play_with(self, file: Path, weight_version: int) -> None:
        model = self._receiving_model()
        if self._learner is not None:
            read_weights(file, model, self.config.learner.hands_over)
        self._to_players(model, weight_version)

    def _take_snapshot(self) -> None:
        self._snapshot = None if self._learner is None else self._learner.snapshot()

    def _hand_over(self) -> None:
        """The learners' weights, and their number, to everyone who plays."""
        model = self._receiving_model() if self.ranks.plays else self.policy.model
        if self._learner is not None:
            self._learner.weights_into(model)
        self._to_players(model, 0 if self._learner is None else self._learner.updates)

    def _receiving_model(self) -> PreTrainedModel:
        """Where weights that are handed over go first: while episodes are played, a copy in host memory."""
        policy = self.policy.model
        if not self._played.busy:
            return policy
        hosted: dict[int, torch.Tensor] = {id(t): t.detach().to("cpu", copy=True) for t in policy.buffers()}
        for parameter in policy.parameters():
            hosted[id(parameter)] = torch.nn.Parameter(parameter.detach().to("cpu", copy=True), requires_grad=False)
        return copy.deepcopy(policy, hosted)

    def _to_players(self, model: PreTrainedModel, weight_version: int) -> None:
        """Those of the first learner's ``model``, and their version, which is the first learner's, too."""
        version = torch.tensor(weight_version)
        if self.ranks.layout.rollout_nodes:
            with torch.no_grad():
                self.ranks.share_tensors([version, *model.parameters(), *model.buffers()])
        if self._pool is None:
            return
        if self._played.busy:
            self._waiting_weights = (model, int(version))
        else:
            self._waiting_weights = None
            self.policy.engine.load_weights(model, int(version))


def _raise_first(errors: Iterable[RubricError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def _joined(rollouts: Sequence[Rollout], shares: Sequence[Tagged], wait_s: float) -> Streamed:
    """The processes' judgements as one, in the order of the rollouts."""
    counters = JudgeCounters()
    by_id: dict[str, Judgement] = {}
    for share in shares:
        counters.add(share.judged.counters)
        by_id |= dict(zip(share.rollout_ids, share.judged.judgements, strict=True))
    judgements = tuple(by_id[rollout.rollout_id] for rollout in rollouts)
    after_batch_s = max((share.judged.after_batch_s for share in shares), default=0.0)
    return Streamed(judgements, counters, wait_s, after_batch_s)
