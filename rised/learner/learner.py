"""One update: reference pass, teacher pass, actor pass in micro-batches, one optimiser step.

Blind to methods. Deterministic: no random number is drawn, dropout is off, and the order of all sums follows from the
sequences and the number of ranks. What an update is made of is here, with the optimiser in plain torch; another engine
for the same update is in ``deepspeed``. Which tokens a term is made of is in ``plan``, the state to resume from in
``state``, the arithmetic of reductions in ``reductions``, what ranks share in ``ranks``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rised.learner import state
from rised.learner.errors import LearnerError
from rised.learner.measures import Tally
from rised.learner.passes import NOTHING, Scorer, scored, scored_without_gradient, token_scorer
from rised.learner.ranks import ALONE, LearnerRanks
from rised.learner.settings import LearnerSettings
from rised.learner.term_plan import Plan, as_tensor, make_plan, term_losses, warn_of_nonfinite, weigh
from rised.learner.types import LossTerm, Need, Timings, TrainingSequence, UpdateReport
from rised.models.devices import own_device
from rised.models.packing import check_packing
from rised.models.scoring import plan_micro_batches


class Learner:
    """Holds the policy, its optimiser and the frozen reference.

    ``temperature`` is the sampling temperature of the rollouts: all log-probabilities are taken at it. The policy's
    weights are its own teacher. The reference may be None if no loss term needs one. Of several ``ranks`` each calls
    :meth:`update` with the same sequences and terms.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reference_model: PreTrainedModel | None,
        settings: LearnerSettings,
        *,
        temperature: float,
        ranks: LearnerRanks = ALONE,
    ) -> None:
        if temperature <= 0:
            raise LearnerError(f"temperature {temperature}: log-probabilities at a temperature of 0 are not defined")
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        foreign = {p.dtype for p in model.parameters()} - {torch.float32}
        if foreign:
            raise LearnerError(
                f"weights of type {', '.join(sorted(map(str, foreign)))} cannot be trained: small updates would be "
                "rounded away. Set model.dtype to float32; learner.autocast and model.rollout_dtype may be bfloat16"
            )
        if settings.layout == "packed":
            check_packing(model)
        self.model = model.eval()
        self.reference_model = None if reference_model is None else reference_model.eval().requires_grad_(False)
        self.settings = settings
        self.temperature = temperature
        self.ranks = ranks
        self.updates = 0
        self.empty_updates = 0
        self.scorer: Scorer = token_scorer(model, settings)
        self.reference_scorer: Scorer | None = (
            None if reference_model is None else token_scorer(reference_model, settings)
        )
        self._open()

    def _open(self) -> None:
        """Bring policy and reference to this process's device, and make the optimiser."""
        for model in (self.model, self.reference_model):
            if model is not None:
                model.to(own_device())  # type: ignore[arg-type]
        self.optimizer: Any = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.settings.learning_rate,
            betas=self.settings.betas,
            eps=self.settings.epsilon,
            weight_decay=self.settings.weight_decay,
        )

    @property
    def device(self) -> torch.device:
        """Where the passes run."""
        return self.model.device

    def update(self, sequences: Sequence[TrainingSequence], terms: Sequence[LossTerm]) -> UpdateReport:
        """Make one optimiser step on the sum of the terms.

        Each term is normalised over its own tokens, those of sequences without any gradient included: they are counted
        but not passed through the actor. If no sequence carries a gradient the update is empty: the loss is exactly 0,
        all gradients are 0, and neither weights (no weight decay either) nor the optimiser's moments change.

        Raises LearnerError if the gradient is not finite (weights are then as before), a pass is not possible, or the
        weights of the ranks differ afterwards.
        """
        terms = [term for term in terms if term.coefficient != 0.0]
        plan = make_plan(sequences, terms)
        needs = {need for term in terms for need in term.needs}

        batches = self._actor_batches(sequences, plan.trained)
        mine = sorted(b for batch in batches for b in batch)

        started = time.perf_counter()
        if Need.REFERENCE in needs:
            plan.reference = self._reference_pass(sequences, mine)
        after_reference = time.perf_counter()
        if needs & {Need.TEACHER, Need.TEACHER_GAP}:
            plan.teacher = self._teacher_pass(sequences, mine)
        after_teacher = time.perf_counter()
        weigh(sequences, terms, plan, mine, self.ranks)
        if self.ranks.index == 0:
            warn_of_nonfinite(plan, self.updates)

        tally = Tally(terms, self._measures_shares())
        self._clear_gradients()
        rounds = self._rounds(len(batches))
        for number in range(rounds):
            batch = batches[number] if number < len(batches) else []
            loss = self._actor_loss(sequences, batch, terms, plan, tally) if batch else self.empty_loss()
            self._backward(loss, last=number == rounds - 1)
        self._add_up_gradients(idle=not batches)
        tally.add_up(self.ranks, self._parameters())
        learning_rate = self._step(tally) if plan.trained else None
        self._refuse_different_weights()
        self.updates += 1
        self.empty_updates += not plan.trained
        timings = Timings(
            after_reference - started, after_teacher - after_reference, time.perf_counter() - after_teacher
        )
        measures = tally.measures(
            learning_rate=learning_rate,
            nonfinite=plan.nonfinite,
            trained_sequences=len(plan.trained),
            skipped_sequences=len(sequences) - len(plan.trained),
            trained_tokens=sum(len(sequences[b].token_ids) for b in plan.trained),
            empty_updates=self.empty_updates,
        )
        return UpdateReport(measures, timings, empty=not plan.trained)

    # -- what another engine does otherwise

    def _rounds(self, passes: int) -> int:
        """How many passes this rank makes, of which ``passes`` are over its own sequences."""
        return passes

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def _backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the loss's gradient. ``last``: of this update."""
        loss.backward()

    def _add_up_gradients(self, *, idle: bool) -> None:
        """Make it the gradient of all ranks. ``idle``: this one had no sequence."""
        if idle or self.ranks.count > 1:
            gradients = [_gradient(parameter) for parameter in self._parameters()]
            self.ranks.add_up(gradients)

    def _take_step(self, learning_rate: float) -> Tensor:
        """Clip, and step unless the gradient is not finite; returns its norm before the clip."""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip or float("inf"))
        if torch.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        return norm

    def empty_loss(self) -> Tensor:
        """A loss of exactly 0 from a pass over nothing, for a rank that has to make a pass without sequences."""
        found = scored(self.scorer, [NOTHING], self.settings, self.temperature, self.device)
        return found[0].sum() * 0.0

    # -- the parts of an update

    def _reference_pass(self, sequences: Sequence[TrainingSequence], trained: Sequence[int]) -> dict[int, Tensor]:
        if self.reference_scorer is None:
            raise LearnerError(
                "a loss term needs the reference's log-probabilities: give the learner a reference model"
            )
        chosen = [sequences[b] for b in trained]
        values = scored_without_gradient(
            self.reference_scorer, chosen, self.settings, self.temperature, self.device, rounds=self._rounds
        )
        return dict(zip(trained, values, strict=True))

    def _teacher_pass(self, sequences: Sequence[TrainingSequence], trained: Sequence[int]) -> dict[int, Tensor]:
        taught = [b for b in trained if sequences[b].teacher_prefix_ids is not None]
        chosen = [sequences[b] for b in taught]
        values = scored_without_gradient(
            self.scorer,
            chosen,
            self.settings,
            self.temperature,
            self.device,
            with_prefix=True,
            rounds=self._rounds,
        )
        return dict(zip(taught, values, strict=True))

    def _actor_batches(self, sequences: Sequence[TrainingSequence], trained: Sequence[int]) -> list[list[int]]:
        """This rank's micro-batches. How sequences are cut into them does not depend on the ranks."""
        lengths = [len(sequences[b].token_ids) for b in trained]
        cut = plan_micro_batches(lengths, self.settings.micro_batch_tokens, self.settings.layout)
        batches = [[trained[i] for i in batch] for batch in cut]
        return self.ranks.mine(batches, [sum(len(sequences[b].token_ids) for b in batch) for batch in batches])

    def _actor_loss(
        self,
        sequences: Sequence[TrainingSequence],
        batch: Sequence[int],
        terms: Sequence[LossTerm],
        plan: Plan,
        tally: Tally,
    ) -> Tensor:
        """The sum of the terms over one micro-batch, coefficients and token weights included."""
        current = self._current(self.scorer, sequences, batch)
        for b in batch:
            tally.add_tokens(current[b], as_tensor(sequences[b].sampled_logprobs, current[b]))
        losses: dict[str, Tensor] = {}
        for term, loss, streams in term_losses(sequences, batch, current, terms, plan):
            losses[term.name] = loss
            tally.add_term(term, loss, streams)
        if self._measures_shares():
            tally.add_gradients(self._losses_for_shares(losses, sequences, batch, terms, plan), self._parameters())
        if not losses:  # no token of these sequences is usable
            return torch.cat(list(current.values())).sum() * 0.0
        return torch.stack(list(losses.values())).sum()

    def _current(
        self, scorer: Scorer, sequences: Sequence[TrainingSequence], batch: Sequence[int]
    ) -> dict[int, Tensor]:
        """Log-probabilities under the policy, with gradient, by index."""
        values = scored(scorer, [sequences[b] for b in batch], self.settings, self.temperature, self.device)
        return dict(zip(batch, values, strict=True))

    def _losses_for_shares(
        self,
        losses: dict[str, Tensor],
        sequences: Sequence[TrainingSequence],
        batch: Sequence[int],
        terms: Sequence[LossTerm],
        plan: Plan,
    ) -> dict[str, Tensor]:
        """The terms' losses with a graph from which each one's own gradient may be taken."""
        return losses

    def _parameters(self) -> list[torch.nn.Parameter]:
        return list(self.model.parameters())

    def _step(self, tally: Tally) -> float:
        taken = self.updates - self.empty_updates
        learning_rate = self.settings.learning_rate * min(1.0, (taken + 1) / max(1, self.settings.warmup_updates))
        norm = self._take_step(learning_rate)
        if not torch.isfinite(norm):
            raise LearnerError(
                f"update {self.updates}: the gradient is not finite (losses: {tally.losses()}); weights are unchanged. "
                "Look for log-probabilities of -inf in the rollouts of this step, or lower the learning rate"
            )
        tally.gradient_norm = float(norm)
        return learning_rate

    def _refuse_different_weights(self) -> None:
        if self.ranks.count == 1:
            return
        bits = [_bits(parameter.detach()).long().sum() for parameter in self._parameters()]
        sums = self.ranks.gather(int(torch.stack(bits).sum()))
        if len(set(sums)) > 1:
            raise LearnerError(
                f"update {self.updates}: the ranks' weights differ (sums of their bits: {sums}); a node computes "
                "otherwise than the others. Start again without it: the run goes on from its last committed step"
            )

    def _measures_shares(self) -> bool:
        every = self.settings.gradient_share_every
        return every > 0 and self.updates % every == 0

    def weights_into(self, model: PreTrainedModel) -> None:
        """Copy the weights into ``model`` (same architecture), unless it is the learner's own. All ranks call it."""
        if model is not self.model:
            with torch.no_grad():
                targets = dict(model.named_parameters())
                for name, value in self.model.named_parameters():
                    targets[name].copy_(value)

    def snapshot(self) -> state.Snapshot | None:
        """Copy weights, optimiser and counters to the first rank's host memory; None on the others. All ranks call it.

        A run that goes on from what :meth:`Snapshot.write` makes of it does so byte for byte.
        """
        return state.snapshot(self.model, self.optimizer, self._counters()) if self.ranks.index == 0 else None

    def save_state(self, folder: Path) -> None:
        """Write a snapshot into ``folder``. All ranks call it."""
        taken = self.snapshot()
        if taken is not None:
            taken.write(folder)

    def load_state(self, folder: Path) -> None:
        """Take over what :meth:`save_state` wrote. Raises LearnerError if it does not fit this model."""
        counters: dict[str, Any] = state.load(folder, self.model, self.optimizer)
        self.updates, self.empty_updates = counters["updates"], counters["empty_updates"]

    def _counters(self) -> dict[str, int]:
        return {"updates": self.updates, "empty_updates": self.empty_updates}


def _gradient(parameter: torch.nn.Parameter) -> Tensor:
    """The parameter's gradient, of zeros where this rank's batches do not reach it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _bits(tensor: Tensor) -> Tensor:
    """The numbers' bits as integers of their size."""
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)
