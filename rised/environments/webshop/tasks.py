"""Task panels: which goals are train, which are validation, and what a task's payload holds.

The original's splits are ranges of goal indices. A generated catalogue is split by product instead: two goals may want
the same product, and a policy that knows it from training has an easier task.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

from rised.environments.base import EnvironmentFault, Task
from rised.environments.webshop.goals import Goal, build_goals
from rised.environments.webshop.settings import WebshopSettings
from rised.environments.webshop.store import load_shop, prepare_shop

NAME = "webshop"
_SHARES = {"validation": range(0, 24), "sft": range(24, 112), "train": range(112, 256)}
"""Which first bytes of the hash of a generated product's id belong to which split; ``sft`` is for demonstrations."""


def split_of(asin: str) -> str:
    """The one split whose goals may want a generated product."""
    byte = hashlib.sha256(asin.encode()).digest()[0]
    return next(split for split, bytes_ in _SHARES.items() if byte in bytes_)


def content_hash(shop_key: str, goal: Goal) -> str:
    """SHA-256 of what is wanted: product, attributes and options in any order, price limit. The wording is left out."""
    wanted = [shop_key, goal.asin, sorted(goal.attributes), sorted(goal.options), goal.price_upper]
    return hashlib.sha256(json.dumps(wanted, ensure_ascii=False).encode()).hexdigest()


def traits(task: Task) -> dict[str, Any]:
    """What another task may share with this one."""
    goal = task.payload["goal"]
    return {"products": goal["asin"], "instructions": goal["instruction"]}


def prepare(settings: WebshopSettings, split: str, count: int, seed: int) -> list[Task]:
    """``count`` tasks of ``split``, drawn by ``seed`` from the split's goals, in index order.

    Of a generated catalogue these are goals of the split's products, no two of equal content; of the original files
    the split's range of goal indices. Prepares the catalogue first if need be. EnvironmentFault if the split has fewer
    goals than asked for.
    """
    prepare_shop(settings)
    shop = load_shop(settings)
    goals = build_goals(shop.catalogue, settings.goal_kind, settings.price_seed)
    start, end = settings.goal_range(split)
    indices = list(range(min(start, len(goals)), len(goals) if end is None else min(end, len(goals))))
    if settings.source == "generated":
        first = {content_hash(shop.key, goals[i]): i for i in reversed(indices) if split_of(goals[i].asin) == split}
        indices = sorted(first.values())
    if not 0 < count <= len(indices):
        human, synthetic = (
            len(build_goals(shop.catalogue, kind, settings.price_seed)) for kind in ("human", "synthetic")
        )
        source = "generated catalogue holds" if settings.source == "generated" else "files hold"
        raise EnvironmentFault(
            f"webshop: {count} {split} tasks asked for, but goal indices {start} to {end} of {len(goals)} "
            f"{settings.goal_kind} goals give {len(indices)}. The {source} {human} human and {synthetic} synthetic "
            f"goals: choose with goal_kind (human, synthetic), train_range and validation_range, or lower {split}_tasks"
        )
    rng = random.Random(f"webshop-tasks/{split}/{seed}")
    tasks = []
    for index in sorted(rng.sample(indices, count)):
        goal = goals[index].to_payload()
        goal["nouns"] = list(shop.nouns[goals[index].asin])
        payload: dict[str, Any] = {"shop": shop.key, "index": index, "goal": goal}
        content = content_hash(shop.key, goals[index])
        tasks.append(Task(NAME, split, f"{NAME}-{split}-{index:05d}", index, payload, content))
    return tasks
