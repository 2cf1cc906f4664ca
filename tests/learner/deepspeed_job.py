"""Jobs of several ranks that train the tiny model with DeepSpeed: ``python deepspeed_job.py FOLDER``.

``FOLDER/jobs.json`` lists them: how many ranks, and which cases they do one after the other. Of each case stays
``FOLDER/CASE-RANK.npz``: losses, the gradients before each step, and the weights as others would play with them. The
ranks are forked from one process, because importing DeepSpeed takes longer than a case.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from learner_examples import measures, sequences, terms, tiny_model, weights
from torch import Tensor

from rised.learner.backends import make_learner
from rised.learner.learner import Learner
from rised.learner.ranks import ALONE, LearnerRanks
from rised.learner.settings import DeepSpeedLearnerSettings, LearnerSettings

DEFAULTS = {"learning_rate": 1e-3, "gradient_share_every": 0, "micro_batch_tokens": 64, "weight_decay": 0.01}
MOST_S = 900


def settings_of(case: Mapping[str, Any]) -> LearnerSettings:
    kind = DeepSpeedLearnerSettings if case.get("type") == "deepspeed" else LearnerSettings
    return kind(**(DEFAULTS | {name: value for name, value in case.items() if name not in OTHER}))


OTHER = ("load", "save", "seeds", "count", "tied")
"""Keys of a case that are not the learner's settings: folders, the batches' seeds, sequences of a batch, tied head."""


def open_learner(case: Mapping[str, Any], ranks: LearnerRanks = ALONE) -> Learner:
    model = tiny_model(tied=case.get("tied", True))
    return make_learner(model, tiny_model(9), settings_of(case), temperature=0.8, ranks=ranks)


def watched_gradients(learner: Learner) -> list[Tensor]:
    """Filled with the whole gradient of every update, taken right before its step."""
    found: list[Tensor] = []
    step = learner._take_step

    def watched(learning_rate: float) -> Tensor:
        parameters = list(learner.model.parameters())
        if learner.settings.type == "deepspeed":
            from deepspeed.utils import safe_get_full_grad

            gradients = [safe_get_full_grad(parameter) for parameter in parameters]
        else:
            gradients = [parameter.grad for parameter in parameters]
        found.append(torch.cat([gradient.detach().float().flatten().clone() for gradient in gradients]))
        return step(learning_rate)

    learner._take_step = watched  # type: ignore[method-assign]
    return found


def results(case: Mapping[str, Any], ranks: LearnerRanks = ALONE) -> dict[str, np.ndarray]:
    """What the updates of a case give."""
    learner = open_learner(case, ranks)
    if "load" in case:
        learner.load_state(Path(case["load"]))
    gradients = watched_gradients(learner)
    found: dict[str, np.ndarray] = {}
    for number, seed in enumerate(case.get("seeds", (1, 2))):
        batch = sequences(tiny_model(), case.get("count", 6), seed)
        report = measures(learner.update(batch, terms()))
        found |= {f"{name}/{number}": np.array(np.nan if v is None else v) for name, v in report.items()}
    played = tiny_model(4, tied=case.get("tied", True))
    learner.weights_into(played)
    found |= {f"gradient/{number}": gradient.numpy() for number, gradient in enumerate(gradients)}
    found["weights"] = weights(played).numpy()
    if "save" in case:
        learner.save_state(Path(case["save"]))
    return found


Jobs = Sequence[tuple[int, Mapping[str, Mapping[str, Any]]]]
"""(ranks, case -> its keys), one job after the other."""


def run_jobs(jobs: Jobs, folder: Path) -> dict[str, list[dict[str, np.ndarray]]]:
    """Case -> each rank's results."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    here = Path(__file__).resolve()
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here.parents[2]}:{here.parent}"}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(here), str(folder)],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=MOST_S)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the forked ranks too, if they are late
    assert process.returncode == 0, output
    return {
        name: [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(ranks)]
        for ranks, cases in jobs
        for name in cases
    }


def be_rank(rank: int, size: int, port: int, cases: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    ranks = LearnerRanks(rank, size, distributed.group.WORLD)
    for name, case in cases.items():
        np.savez(folder / f"{name}-{rank}.npz", **results(case, ranks))
    distributed.barrier()


def main(folder: Path) -> None:
    import rised.learner.zero  # noqa: F401  before the fork

    torch.set_num_threads(1)
    for size, cases in json.loads((folder / "jobs.json").read_text()):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        children = []
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    be_rank(rank, size, port, cases, folder)
                    code = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(pid)
        if [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] != [0] * size:
            sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
