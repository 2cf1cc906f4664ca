"""One update by several processes is the update of one, up to the order of the gradient's sums."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as distributed
from hypothesis import given
from hypothesis import strategies as st
from learner_examples import sequences, terms, tiny_model

from rised.learner.learner import Learner
from rised.learner.ranks import LearnerRanks
from rised.learner.settings import LearnerSettings
from rised.learner.types import Reduction
from rised.models.scoring import Layout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def updated(ranks: LearnerRanks, count: int, reduction: Reduction, layout: Layout) -> dict[str, np.ndarray]:
    """Weights and measures after two updates on ``count`` sequences."""
    model = tiny_model()
    settings = LearnerSettings(learning_rate=1e-3, gradient_share_every=1, micro_batch_tokens=64, layout=layout)
    learner = Learner(model, tiny_model(9), settings, temperature=0.8, ranks=ranks)
    for seed in (1, 2):
        report = learner.update(sequences(model, count, seed), terms(reduction))
    found = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    found |= {f"measure {m.name}": np.array(np.nan if m.value is None else m.value) for m in report.metrics}
    return found


def by_processes(
    count: int, folder: Path, sequence_count: int, reduction: Reduction, layout: Layout
) -> list[dict[str, np.ndarray]]:
    """What each of ``count`` forked processes has after the updates."""
    children = []
    port = free_port()
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                address = f"tcp://127.0.0.1:{port}"
                distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=count)
                ranks = LearnerRanks(rank, count, distributed.group.WORLD)
                np.savez(folder / f"{rank}.npz", **updated(ranks, sequence_count, reduction, layout))
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * count
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(count)]


@pytest.mark.parametrize("reduction", [Reduction.TOKEN_MEAN, Reduction.SEQUENCE_MEAN_TOKEN_MEAN])
@pytest.mark.parametrize(
    ("ranks", "count", "layout"), [(2, 6, "padded"), (3, 6, "padded"), (2, 1, "padded"), (2, 6, "packed")]
)
def test_ranks_make_the_step_of_one_process(
    ranks: int, count: int, layout: Layout, reduction: Reduction, tmp_path: Path
) -> None:
    """``count`` 1: the second rank has no tokens and joins all the same."""
    torch.set_num_threads(1)
    alone = updated(LearnerRanks(), count, reduction, "padded")
    together = by_processes(ranks, tmp_path, count, reduction, layout)
    for name, expected in alone.items():
        measured = [found[name] for found in together]
        assert all(np.array_equal(m, measured[0], equal_nan=True) for m in measured), name
        np.testing.assert_allclose(measured[0], expected, rtol=1e-4, atol=1e-6, err_msg=name)


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_every_part_has_one_owner_and_loads_are_even(sizes: list[int], count: int) -> None:
    parts = list(range(len(sizes)))
    shares = [LearnerRanks(index, count).mine(parts, sizes) for index in range(count)]
    assert sorted(part for share in shares for part in share) == parts
    assert all(share == sorted(share) for share in shares)
    loads = [sum(sizes[part] for part in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)
