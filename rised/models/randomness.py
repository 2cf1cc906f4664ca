"""The random numbers of an episode: they follow from what it is, never from where or beside what it is played."""

from __future__ import annotations

import hashlib

import numpy as np


def episode_seed(run_seed: int, split: str, step: int, environment: str, task_id: str, rollout_index: int) -> int:
    """A 63-bit number that stands for the episode; a function of the arguments only."""
    identity = "\x1f".join(["rised-episode", str(run_seed), split, str(step), environment, task_id, str(rollout_index)])
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big") >> 1


def episode_uniforms(seed: int, count: int) -> np.ndarray:
    """The first ``count`` of the episode's uniforms in [0, 1), float64 (counter-based Philox keyed by its seed)."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def reply_seed(seed: int, turn: int) -> int:
    """A 63-bit seed of the ``turn``-th reply of an episode (or text), for engines that draw themselves."""
    digest = hashlib.sha256(f"rised-reply\x1f{seed}\x1f{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
