"""Which of a host's GPUs are this process's, and whether vLLM is there to serve with them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from rised.config import ConfigError
from rised.models.devices import own_index
from rised.models.engine_settings import VllmEngineSettings
from rised.models.server_process import device_slices

_PROBE = (
    "import importlib.metadata as m, importlib.util as u, sys\n"
    "assert u.find_spec('vllm')\n"
    "names = [n for n in m.packages_distributions().get('vllm', ()) ] or ['vllm']\n"
    "print(m.version(names[0]))"
)
_PROBE_TIMEOUT_S = 120


def own_devices(environment: Mapping[str, str], wanted: int) -> list[str]:
    """This process's part of CUDA_VISIBLE_DEVICES, or of what torch sees; without either ``wanted`` by LOCAL_RANK.

    The first is the learner's device, too (:func:`rised.models.devices.own_device`). Processes of one node that all see
    all of its GPUs share them out in the order of LOCAL_RANK; where each was given fewer than there are processes, they
    are its own already.
    """
    visible, size = environment.get("CUDA_VISIBLE_DEVICES"), int(environment.get("LOCAL_WORLD_SIZE", "1"))
    seen = torch.cuda.device_count()
    if visible is not None:
        devices = [device.strip() for device in visible.split(",") if device.strip()]
    elif seen:
        devices = [str(number) for number in range(seen)]
    else:
        first = int(environment.get("LOCAL_RANK", "0")) * wanted
        return [str(number) for number in range(first, first + wanted)]
    share = len(devices) // size
    if not share:
        return devices
    first = own_index(len(devices), environment)
    return devices[first : first + share]


def server_devices(settings: VllmEngineSettings, environment: Mapping[str, str]) -> list[list[str]]:
    """The GPUs of each of this process's servers. ModelError if there are too few.

    With weights from GPU to GPU the first of the process's GPUs is the learner's alone.
    """
    learners_own = int(settings.handover == "nccl")
    wanted = settings.replicas * settings.tensor_parallel + learners_own
    devices = own_devices(environment, wanted)[learners_own:]
    return device_slices(settings, {"CUDA_VISIBLE_DEVICES": ",".join(devices)}, "engine")


def vllm_version(settings: VllmEngineSettings) -> str:
    """Version of the vLLM that the interpreter finds. ConfigError says how to get one, before anything is loaded."""
    interpreter = settings.python or sys.executable
    if not (Path(interpreter).is_file() and os.access(interpreter, os.X_OK)):
        raise ConfigError(
            f"engine.python: there is no interpreter {interpreter}; `make vllm` sets up one in .venv-vllm, or name the "
            "one of an environment that has vLLM"
        )
    done = subprocess.run([interpreter, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    if done.returncode != 0:
        raise ConfigError(
            f"engine.type is vllm, but {interpreter} has no vLLM: install it there (`pip install 'rised[cluster]'` for "
            "GPUs, `make vllm` for CPUs), name another interpreter as engine.python, or set engine.type: transformers"
        )
    return done.stdout.strip()
