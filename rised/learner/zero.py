"""The learner on DeepSpeed: the same update, with optimiser, gradients and weights sharded over the ranks (ZeRO).

Only what differs from the plain learner is here: how a gradient is accumulated and reduced, how a step is taken, and
how whole tensors are put together from the ranks' parts. DeepSpeed averages gradients over the ranks; the token weights
already count all ranks' tokens, so losses are multiplied by the number of ranks. Every rank makes the same number of
passes, because with sharded weights each pass is a collective operation. DeepSpeed's AdamW is torch's, so that a step
is the plain learner's up to the order of sums.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import deepspeed
import torch
import torch.distributed as distributed
from deepspeed.utils import logger as deepspeed_logger
from torch import Tensor
from transformers import PreTrainedModel

from rised.learner import sharded, state
from rised.learner.errors import LearnerError
from rised.learner.footprint import reduction_bucket
from rised.learner.learner import Learner
from rised.learner.passes import token_scorer
from rised.learner.ranks import process_backend
from rised.learner.settings import DeepSpeedLearnerSettings
from rised.learner.term_plan import Plan, term_losses
from rised.learner.types import LossTerm, TrainingSequence
from rised.models.devices import own_device


def join_processes(ranks: int) -> None:
    """Make sure that DeepSpeed sees a process group of exactly the learners; one process alone gets one for itself.

    Raises LearnerError if torch's default group has other processes beside the learners.
    """
    if not distributed.is_initialized():
        distributed.init_process_group(process_backend(), store=distributed.HashStore(), rank=0, world_size=1)
    if distributed.get_world_size() != ranks:
        raise LearnerError(
            f"DeepSpeed works on torch's default process group, which has {distributed.get_world_size()} processes; "
            f"the learners are {ranks}"
        )
    os.environ.setdefault("LOCAL_RANK", "0")  # of a process without a launcher
    deepspeed_logger.setLevel(logging.WARNING)
    # its shared-memory reductions are compiled for minutes at the first use, and a killed compiler's lock is waited for
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=process_backend(), auto_mpi_discovery=False, verbose=False)


class DeepSpeedLearner(Learner):
    """See the module. ``model`` and the reference are taken over: at stage 3 their parameters hold nothing any more."""

    settings: DeepSpeedLearnerSettings

    def _open(self) -> None:
        settings = self.settings
        join_processes(self.ranks.count)
        self._plain_scorer = token_scorer(self.model, settings)
        self.engine = self._engine(self._plain_scorer, engine_settings(settings, self.model.num_parameters()))
        self.scorer = self.engine
        self.optimizer: Any = self.engine.optimizer
        if self.reference_model is None:
            return
        if settings.reference == "sharded":
            self.reference_scorer = self._engine(
                token_scorer(self.reference_model, settings), sharded_model_settings(settings)
            )
        elif settings.reference == "resident":
            self.reference_model.to(self.device)  # type: ignore[arg-type]

    def _engine(self, module: torch.nn.Module, engine_config: dict[str, Any]) -> Any:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        engine, *_ = deepspeed.initialize(
            args=argparse.Namespace(device_rank=own_device().index or 0),
            model=module,
            model_parameters=trained or None,
            config=engine_config,
            dist_init_required=False,
        )
        engine.eval()
        return engine

    @property
    def device(self) -> torch.device:
        return cast(torch.device, self.engine.device)

    def _rounds(self, passes: int) -> int:
        return max(self.ranks.gather(passes))

    def _clear_gradients(self) -> None:
        if self.settings.zero_stage == 0:
            self.engine.zero_grad()

    def _backward(self, loss: Tensor, *, last: bool) -> None:
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * self.ranks.count, scale_wrt_gas=False)

    def _add_up_gradients(self, *, idle: bool) -> None:
        """DeepSpeed did, in the last backward pass."""

    def _take_step(self, learning_rate: float) -> Tensor:
        if self.settings.zero_stage == 0:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self._parameters() if p.grad is not None])
            if not torch.isfinite(norm):
                return norm
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.engine.step()
        if self.settings.zero_stage == 0:
            return norm
        if self.optimizer.overflow:  # found before anything was changed
            return torch.tensor(float("inf"))
        return torch.as_tensor(float(self.engine.get_global_grad_norm()))

    def _losses_for_shares(
        self,
        losses: dict[str, Tensor],
        sequences: Sequence[TrainingSequence],
        batch: Sequence[int],
        terms: Sequence[LossTerm],
        plan: Plan,
    ) -> dict[str, Tensor]:
        """From a pass of its own, past the engine, which would take any backward pass for one of an update."""
        current = self._current(self._plain_scorer, sequences, batch)
        return {term.name: loss for term, loss, _ in term_losses(sequences, batch, current, terms, plan)}

    def _reference_pass(self, sequences: Sequence[TrainingSequence], trained: Sequence[int]) -> dict[int, Tensor]:
        if self.reference_model is None or self.settings.reference != "offloaded":
            return super()._reference_pass(sequences, trained)
        try:
            self.reference_model.to(self.device)  # type: ignore[arg-type]
            return super()._reference_pass(sequences, trained)
        finally:
            self.reference_model.to("cpu")  # type: ignore[arg-type]

    def _refuse_different_weights(self) -> None:
        if self.settings.zero_stage < 3:
            super()._refuse_different_weights()

    def weights_into(self, model: PreTrainedModel) -> None:
        if model is self.model:
            return
        targets = dict(model.named_parameters())
        for name, parameter in self.model.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.settings.zero_stage == 3), torch.no_grad():
                targets[name].copy_(parameter)

    def snapshot(self) -> state.Snapshot | None:
        """Whole tensors, as the plain learner has them: any stage and number of ranks goes on from their files."""
        weights, moments = sharded.gathered(self.model, self.engine, self.ranks)
        if self.ranks.index > 0:
            return None
        return state.Snapshot(weights, moments, self._counters(), state.state_dict_names(self.model))

    def load_state(self, folder: Path) -> None:
        saved = state.read(folder, sharded.shapes(self.model))
        sharded.scatter(self.model, self.engine, self.ranks, saved)
        self.updates, self.empty_updates = saved.counters["updates"], saved.counters["empty_updates"]


def engine_settings(settings: DeepSpeedLearnerSettings, parameters: int) -> dict[str, Any]:
    """DeepSpeed's own configuration for the trained policy, which has so many parameters."""
    zero: dict[str, Any] = {"stage": settings.zero_stage, "reduce_bucket_size": reduction_bucket(parameters)}
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return _common(settings) | {
        "optimizer": {
            "type": "AdamW",
            "params": {
                "torch_adam": True,
                "lr": settings.learning_rate,
                "betas": list(settings.betas),
                "eps": settings.epsilon,
                "weight_decay": settings.weight_decay,
            },
        },
        "gradient_clipping": settings.gradient_clip or 0.0,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
    }


def sharded_model_settings(settings: DeepSpeedLearnerSettings) -> dict[str, Any]:
    """DeepSpeed's own configuration for a model that is never trained and lies in parts on the ranks."""
    return _common(settings) | {"zero_optimization": {"stage": 3}}


def _common(settings: DeepSpeedLearnerSettings) -> dict[str, Any]:
    bfloat16 = settings.weights == "bfloat16"
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "steps_per_print": None,
        "bf16": {"enabled": bfloat16, **({"check_grad_overflow": True} if bfloat16 else {})},
    }
    return found | ({"data_types": {"grad_accum_dtype": "fp32"}} if bfloat16 else {})
