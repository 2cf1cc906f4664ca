"""Stages on the CPU or on an emulated device, for `test_other_device`; chosen where they choose a GPU.

python other_device_job.py REPOSITORY cpu|emulated train FOLDER METHOD OVERRIDE ...
python other_device_job.py REPOSITORY cpu|emulated gradient CONFIG TASKS RUN
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

repository = Path(sys.argv[1])
sys.path[:0] = [str(repository), str(repository / "tests"), str(repository / "tests" / "stages")]

from emulated_device import NAME, install  # noqa: E402
from lagged_experiment import make_experiment  # noqa: E402

from rised.learner.settings import GradientSettings  # noqa: E402
from stages.gradient import measure_gradients  # noqa: E402
from stages.setup import load_run, read_tasks  # noqa: E402

CHOOSERS = ("rised.learner.learner.own_device", "stages.policy.own_device")


def train(folder: str, method: str, *overrides: str) -> None:
    """A run that is stopped after two updates and gone on with."""
    policy = repository / "data" / "nano_policy"
    experiment = make_experiment(Path(folder), repository, policy, *(o for o in overrides if o.startswith("model.")))
    for updates in (2, 4):
        experiment.train(Path(folder) / "run", method, f"updates={updates}", *overrides)


def gradient(config: str, tasks: str, run: str) -> None:
    """The gradient signal of a finished run."""
    settings = GradientSettings(tasks=3, projection=64)
    measure_gradients(load_run(Path(config), "grpo_64", 0), settings, read_tasks(Path(tasks)), Path(run))


def main() -> None:
    where, job, *arguments = sys.argv[2:]
    torch.set_num_threads(1)
    if where == NAME:
        device = install()
        for chooser in CHOOSERS:
            mock.patch(chooser, lambda: device).start()
    with sdpa_kernel(SDPBackend.MATH):  # the device has no other, and the results are compared
        {"train": train, "gradient": gradient}[job](*arguments)


if __name__ == "__main__":
    main()
