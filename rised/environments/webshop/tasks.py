"""Task panels: which goals are train, which are validation, and what a task's payload holds."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

from rised.environments.base import EnvironmentFault, Task
from rised.environments.webshop.goals import build_goals
from rised.environments.webshop.settings import WebshopSettings
from rised.environments.webshop.store import load_shop, prepare_shop

NAME = "webshop"


def prepare(settings: WebshopSettings, split: str, count: int, seed: int) -> list[Task]:
    """``count`` tasks of ``split``, drawn by ``seed`` from the split's range of goal indices, in index order.

    Prepares the catalogue first if need be. EnvironmentFault if the split has fewer goals than asked for.
    """
    prepare_shop(settings)
    shop = load_shop(settings)
    goals = build_goals(shop.catalogue, settings.goal_kind, settings.price_seed)
    start, end = settings.goal_range(split)
    indices = range(min(start, len(goals)), len(goals) if end is None else min(end, len(goals)))
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
        content = hashlib.sha256(json.dumps(payload, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
        tasks.append(Task(NAME, split, f"{NAME}-{split}-{index:05d}", index, payload, content))
    return tasks
