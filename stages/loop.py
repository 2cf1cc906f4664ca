"""The steps of one update as functions: plan, collect, tag, group, select, evaluate.

The train stage calls them in order; each can also be applied by hand to stored shards. They are pure in what they are
given: tasks and randomness follow from (run seed, step, task, rollout index), never from a worker or an order.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence

from rised.environments.base import Task
from rised.environments.discovery import get
from rised.experiment import RunConfig, RunSettings
from rised.methods.base import PromptGroup
from rised.records.text import UNDECODABLE_IDS
from rised.records.types import Metric, Rollout, StopReason, Tag, TagStatus
from rised.rollouts.oversampling import is_spare
from rised.rollouts.plans import EpisodePlan
from rised.rollouts.settings import RolloutSettings
from rised.rubrics.blocks import avoid_block
from rised.rubrics.vocabulary import Vocabulary
from rised.statistics.pass_rates import mean_over_tasks

TRAIN, VALIDATION = "train", "validation"
PROBED = 4
"""Tasks of a panel whose prompts are measured before anything is generated."""


def quotas(total: int, environments: Sequence[str], step: int) -> dict[str, int]:
    """``total`` split evenly; the remainder goes to environments in turn, rotating with the step."""
    base, remainder = divmod(total, len(environments))
    extra = {environments[(step + i) % len(environments)] for i in range(remainder)}
    return {name: base + (name in extra) for name in environments}


def begun(config: RunConfig, candidates: int, environments: Sequence[str], step: int) -> dict[str, int]:
    """How many groups of each environment a step begins: those that it needs and the spare ones."""
    needed = quotas(candidates, environments, step)
    return {name: count + config.rollout.spare_groups(count) for name, count in needed.items()}


def draw_tasks(panel: Sequence[Task], position: int, count: int, most: int, seed: int) -> list[Task]:
    """``count`` different tasks from ``position`` on in an endless sequence of seeded permutations of the panel.

    A permutation begins with none of the tasks that end the one before, so that no task comes twice in a step, where
    its rollouts would be the same. ``most``: the largest ``count`` of a run, at most half the panel.
    """
    apart = max(len(panel) // 4, most)
    orders: dict[int, list[int]] = {}
    for epoch in range((position + count - 1) // len(panel) + 1):
        key = hashlib.sha256(f"{seed}/{panel[0].environment}/{epoch}".encode()).digest()
        order = list(range(len(panel)))
        random.Random(key).shuffle(order)
        before = set(orders[epoch - 1][len(panel) - apart :]) if epoch else set()
        head = [index for index in order if index not in before][:apart]
        taken = set(head)
        orders[epoch] = head + [index for index in order if index not in taken]
    places = (divmod(place, len(panel)) for place in range(position, position + count))
    return [panel[orders[epoch][index]] for epoch, index in places]


def training_plans(
    config: RunConfig,
    panels: Mapping[str, Sequence[Task]],
    cursors: Mapping[str, int],
    steering: Mapping[str, tuple[str, ...]],
    vocabulary: Vocabulary,
    candidates: int,
    step: int,
    run: str,
) -> list[EpisodePlan]:
    """The episodes of one update: ``candidates`` groups over the environments, ``rollouts_per_group`` times each, and
    the spare ones of ``rollout.oversample``.

    They are played with the weights before the update or, with ``pipeline.lag``, so many versions older; the first
    steps with those that the run starts from.
    """
    plans = []
    most = math.ceil(candidates / len(panels))
    most += config.rollout.spare_groups(most)
    for name, needed in quotas(candidates, list(panels), step).items():
        rubrics = steering.get(name, ())
        text = avoid_block(rubrics, vocabulary, config.block_style) if rubrics else ""
        spare = config.rollout.spare_groups(needed)
        for place, task in enumerate(draw_tasks(panels[name], cursors[name], needed + spare, most, config.seed)):
            for index in range(config.rollouts_per_group):
                plans.append(
                    EpisodePlan(
                        task=task,
                        split=TRAIN,
                        step=step,
                        group_id=f"{name}-{place:03d}-{task.task_id}",
                        rollout_index=index,
                        run=run,
                        run_seed=config.seed,
                        weight_version=max(0, step - 1 - config.pipeline.lag),
                        steering_text=text,
                        steering_rubrics=tuple(rubrics),
                        spare=is_spare(place, needed, spare),
                    )
                )
    return plans


def validation_plans(
    config: RunSettings, panels: Mapping[str, Sequence[Task]], step: int, run: str
) -> list[EpisodePlan]:
    """Original prompts only. The randomness is the same at every step and in every run, so that results are paired.

    The initial evaluation (step 0) and that of the last update may have more rollouts per task than the others.
    """
    settings = config.validation
    at_ends = settings.rollouts_per_task_at_ends if step in (0, config.updates) else None
    count = at_ends or settings.rollouts_per_task
    return [
        EpisodePlan(
            task=task,
            split=VALIDATION,
            step=step,
            group_id=f"{name}-{task.task_id}",
            rollout_index=index,
            run=run,
            run_seed=settings.seed,
            weight_version=step,
            paired=True,
        )
        for name, panel in panels.items()
        for task in panel
        for index in range(count)
    ]


def probes(*panels: Mapping[str, Sequence[Task]]) -> list[Task]:
    """Up to ``PROBED`` tasks of each environment and panel, spread over it: to measure prompts before a collection."""
    return [task for panel in panels for tasks in panel.values() for task in tasks[:: math.ceil(len(tasks) / PROBED)]]


def validation_rollout(config: RunSettings) -> RolloutSettings:
    """The rollout settings with the temperature of validation."""
    return config.rollout.model_copy(update={"temperature": config.validation.temperature})


def token_limit_warnings(rollouts: Sequence[Rollout], limit: int) -> list[str]:
    """A sentence for each environment all of whose episodes, or some of whose prompts, ran into the token limit."""
    found = []
    for name in dict.fromkeys(r.environment for r in rollouts):
        mine = [r for r in rollouts if r.environment == name]
        cut = [r for r in mine if r.stop_reason is StopReason.EPISODE_TOKEN_LIMIT]
        unbegun = [len(r.token_ids) for r in cut if not r.turns]
        if len(cut) == len(mine):
            found.append(
                f"all {len(mine)} episodes of {name} ended by the token limit, none by itself: raise "
                f"rollout.max_episode_tokens (now {limit}), or lower rollout.max_new_tokens_per_turn"
            )
        elif unbegun:
            found.append(
                f"{len(unbegun)} of {len(mine)} episodes of {name} had no room for a reply: their prompts have up to "
                f"{max(unbegun)} tokens, rollout.max_episode_tokens is {limit}"
            )
    return found


def prompt_groups(rollouts: Sequence[Rollout], tags: Sequence[Tag]) -> list[PromptGroup]:
    """Rollouts of one step by group, in order of first appearance, each with its tags."""
    by_rollout: dict[str, list[Tag]] = {}
    for tag in tags:
        by_rollout.setdefault(tag.rollout_id, []).append(tag)
    members: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        members.setdefault(rollout.group_id, []).append(rollout)
    return [
        PromptGroup(
            group_id=group_id,
            environment=group[0].environment,
            rollouts=tuple(group),
            tags=tuple(tag for rollout in group for tag in by_rollout.get(rollout.rollout_id, ())),
        )
        for group_id, group in members.items()
    ]


def rollout_metrics(rollouts: Sequence[Rollout], tags: Sequence[Tag], step: int) -> list[Metric]:
    """Success, reward and counts of the training rollouts; None where nothing is valid."""
    metrics = []
    for name in dict.fromkeys(r.environment for r in rollouts):
        mine = [r for r in rollouts if r.environment == name]
        metrics += _outcomes("rollout", name, mine, step)
        metrics.append(Metric(step, f"rollout/turns/{name}", _mean([len(r.turns) for r in mine]), "count"))
        metrics.append(Metric(step, f"rollout/truncated/{name}", float(_truncated(mine)), "count"))
    metrics.append(Metric(step, "rollout/count", float(len(rollouts)), "count"))
    metrics += _undecodable("rollout", rollouts, step)
    metrics.append(Metric(step, "rollout/invalid", float(sum(not r.reward_valid for r in rollouts)), "count"))
    metrics.append(Metric(step, "rollout/tokens", float(sum(len(r.token_ids) for r in rollouts)), "tokens"))
    metrics.append(Metric(step, "rollout/generated_tokens", float(sum(sum(r.policy_mask) for r in rollouts)), "tokens"))
    lags = [step - 1 - r.weight_version for r in rollouts]
    metrics.append(Metric(step, "rollout/lag", _mean(lags), "updates"))
    metrics.append(Metric(step, "rollout/steered", float(sum(bool(r.steering_text) for r in rollouts)), "count"))
    return metrics + tag_metrics("tags", tags, step)


def tag_metrics(prefix: str, tags: Sequence[Tag], step: int) -> list[Metric]:
    """How many tags there are, and how many of them are errors."""
    errors = sum(t.status is not TagStatus.OK for t in tags)
    return [
        Metric(step, f"{prefix}/count", float(len(tags)), "count"),
        Metric(step, f"{prefix}/errors", float(errors), "count"),
    ]


def validation_metrics(rollouts: Sequence[Rollout], step: int) -> list[Metric]:
    """Pass rate and reward per environment; ``overall`` is the unweighted mean over environments.

    An episode cut by the token budget failed; one that the environment lost counts nowhere but under ``invalid``.
    """
    metrics: list[Metric] = []
    names = list(dict.fromkeys(r.environment for r in rollouts))
    for name in names:
        mine = [r for r in rollouts if r.environment == name]
        metrics += _outcomes("validation", name, mine, step)
        metrics.append(Metric(step, f"validation/tasks/{name}", float(len({r.task_id for r in mine})), "count"))
        metrics.append(Metric(step, f"validation/invalid/{name}", float(sum(r.success is None for r in mine)), "count"))
        metrics.append(Metric(step, f"validation/truncated/{name}", float(_truncated(mine)), "count"))
    metrics += _undecodable("validation", rollouts, step)
    rates = [m.value for m in metrics if m.name.startswith("validation/success/")]
    overall = None if any(r is None for r in rates) else _mean([r for r in rates if r is not None])
    metrics.append(Metric(step, "validation/success/overall", overall, "fraction"))
    return metrics


def _undecodable(prefix: str, rollouts: Sequence[Rollout], step: int) -> list[Metric]:
    """Sampled ids without a text; no row where there are none, as with every tokenizer that fits its model."""
    count = sum(turn.info.get(UNDECODABLE_IDS, 0) for rollout in rollouts for turn in rollout.turns)
    return [Metric(step, f"{prefix}/{UNDECODABLE_IDS}", float(count), "count")] if count else []


def _outcomes(prefix: str, name: str, rollouts: Sequence[Rollout], step: int) -> list[Metric]:
    """Success and reward, and what else the environment measures, over the episodes that it did not lose."""
    success = mean_over_tasks((r.task_id, None if r.success is None else float(r.success)) for r in rollouts)
    reward = mean_over_tasks((r.task_id, r.reward) for r in rollouts)
    return [
        Metric(step, f"{prefix}/success/{name}", success, "fraction"),
        Metric(step, f"{prefix}/reward/{name}", reward, "reward"),
        *_measures(prefix, name, rollouts, step),
    ]


def _measures(prefix: str, name: str, rollouts: Sequence[Rollout], step: int) -> list[Metric]:
    measure = get(name).measures
    if measure is None:
        return []
    values: dict[str, list[tuple[str, float | None]]] = {}
    for rollout in rollouts:
        if rollout.success is not None:
            for key, value in measure([turn.info for turn in rollout.turns]).items():
                values.setdefault(key, []).append((rollout.task_id, value))
    found = sorted(values.items())
    return [Metric(step, f"{prefix}/measures/{name}/{key}", mean_over_tasks(each), "mean") for key, each in found]


def _truncated(rollouts: Sequence[Rollout]) -> int:
    cut = {StopReason.EPISODE_TOKEN_LIMIT, StopReason.TURN_LIMIT}
    return sum(r.stop_reason in cut or any(turn.truncated for turn in r.turns) for r in rollouts)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
