"""Batched multi-turn generation on token ids with one key/value cache for whole episodes.

An engine holds the weights, a session the episodes of one batch. Each call of ``generate`` feeds only what is new of
each row (the observation, and the last sampled token) and samples a reply; nothing is ever decoded or encoded here.
Rows live contiguously in a :class:`~rised.models.rowcache.RowCache`; those still generating are kept at its front, so
that a decoding pass works on views and finished rows cost nothing. Identical first prompts (the rollouts of one group)
are computed once and copied.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from rised.models.attention import rows_attention_in
from rised.models.errors import ModelError
from rised.models.forward import hidden_states, logits_float32, output_head, refuse_foreign_ids
from rised.models.protocols import Generated
from rised.models.rowcache import RowCache
from rised.models.sampling import sample

COMPACT_BELOW = 0.8
"""Rows are rearranged once the share of a decoding pass that is still generating falls below this."""


class TransformersEngine:
    """Generates with a transformers model; token ids in, token ids out.

    ``dtype``: if it differs from the model's, the engine keeps a copy of the weights in it, to be refreshed by
    :meth:`load_weights` after every update; otherwise it uses the given model itself. Logits are float32 either way.
    ``prefill_tokens`` bounds one prefill pass, padding included.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        end_token_id: int,
        dtype: torch.dtype | None = None,
        prefill_tokens: int = 4096,
        weight_version: int | None = None,
    ) -> None:
        _check_attention(model)
        output_head(model)
        self.copies_weights = dtype is not None and dtype != model.dtype
        self.model = model
        if self.copies_weights:
            self.model = copy.deepcopy(model).eval().requires_grad_(False)
            self.model.to(dtype)  # type: ignore[call-arg, arg-type]
        self._head32: nn.Linear | None = None
        self.end_token_id = end_token_id
        self.prefill_tokens = prefill_tokens
        self.max_positions = int(getattr(model.config, "max_position_embeddings", 1 << 30))
        self.tokens_fed = 0
        """Positions computed so far, padding and copies left out."""
        self.tokens_generated = 0
        self.weight_version = weight_version
        """Number of the update that the weights come from; None where nobody said."""
        if self.copies_weights:
            self.load_weights(model, weight_version)

    def __enter__(self) -> TransformersEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to give back."""

    @torch.no_grad()
    def load_weights(self, source: PreTrainedModel, weight_version: int | None = None) -> None:
        """Take over the weights of ``source`` (same architecture), those after ``weight_version`` updates.

        Copies nothing if the engine uses that very model.
        """
        self.weight_version = weight_version
        if source is self.model:
            return
        targets = dict(self.model.named_parameters())
        for name, value in source.named_parameters():
            targets[name].copy_(value)
        head = output_head(source)
        if self.copies_weights:
            self._head32 = copy.deepcopy(head).to(self.model.device, torch.float32).requires_grad_(False)

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Next-token logits [N, V] in float32, from float32 head weights."""
        head = self._head32 if self._head32 is not None else self.model.get_output_embeddings()
        return logits_float32(head, hidden_ND)

    def session(
        self, row_count: int, temperature: float = 1.0, capacity: int = 256, top_p: float = 1.0
    ) -> GenerationSession:
        """Begin a batch of ``row_count`` episodes, all rows empty. ``top_p`` below 1 is for texts not trained on."""
        return GenerationSession(self, row_count, temperature, capacity, top_p)


class GenerationSession:
    """The episodes of one batch; row indices are the caller's and never change."""

    def __init__(
        self, engine: TransformersEngine, row_count: int, temperature: float, capacity: int, top_p: float = 1.0
    ) -> None:
        self._engine = engine
        self._temperature = temperature
        self._top_p = top_p
        self._device = engine.model.device
        self._cache = RowCache(engine.model.config.num_hidden_layers, row_count, capacity)
        self._physical = np.arange(row_count)
        self._row_at = np.arange(row_count)
        self._cached = np.zeros(row_count, dtype=np.int64)
        self._token_ids: list[list[int]] = [[] for _ in range(row_count)]

    def token_ids(self, row: int) -> list[int]:
        """All that the row was conditioned on or sampled; the last sampled token is not in the cache yet."""
        return self._token_ids[row]

    def generate(
        self,
        rows: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        uniforms: Sequence[np.ndarray],
    ) -> list[Generated]:
        """Append ``new_ids`` to each of ``rows`` and sample a reply of at most ``max_new_tokens`` for each.

        ``new_ids`` are the tokens after the row's last sampled one. ``uniforms``: at least ``max_new_tokens`` float64
        per row, the t-th decides the t-th token (ignored at temperature 0). Answers in the order of ``rows``.
        """
        if min(max_new_tokens) < 1 or len(set(rows)) != len(rows):
            raise ValueError("generate needs distinct rows and at least one new token for each")
        model = self._engine.model
        training = model.training
        model.eval()
        try:
            with torch.inference_mode(), rows_attention_in(model):
                for row, ids in zip(rows, new_ids, strict=True):
                    self._token_ids[row] += ids
                hidden_ND = self._prefill(rows, [self._token_ids[row][self._cached[row] :] for row in rows])
                return self._decode(rows, hidden_ND, max_new_tokens, uniforms)
        finally:
            model.train(training)

    # ---- prefill

    def _prefill(self, rows: Sequence[int], feeds: list[list[int]]) -> torch.Tensor:
        """Feed each row; returns the last hidden state of each, [N, D] in the order of ``rows``."""
        if not all(feeds):
            raise ValueError("every row needs at least one new token")
        first_with: dict[tuple[int, ...], int] = {}
        twin_of: dict[int, int] = {}
        unique: list[int] = []
        for index, (row, feed) in enumerate(zip(rows, feeds, strict=True)):
            twin = first_with.setdefault(tuple(feed), index) if self._cached[row] == 0 else index
            if twin == index:
                unique.append(index)
            else:
                twin_of[index] = twin
        last: dict[int, torch.Tensor] = {}
        for chunk in self._chunks(unique, feeds):
            chunk.sort(key=lambda index: self._physical[rows[index]])
            hidden_nTD = self._pass([rows[i] for i in chunk], [feeds[i] for i in chunk])
            for position, index in enumerate(chunk):
                last[index] = hidden_nTD[position, len(feeds[index]) - 1]
        by_twin: dict[int, list[int]] = {}
        for index, twin in twin_of.items():
            by_twin.setdefault(twin, []).append(index)
            last[index] = last[twin]
        for twin, copies in by_twin.items():
            source, targets = int(self._physical[rows[twin]]), [int(self._physical[rows[i]]) for i in copies]
            self._cache.copy_rows([source] * len(targets), targets, len(feeds[twin]))
        for row, feed in zip(rows, feeds, strict=True):
            self._cached[row] += len(feed)
        return torch.stack([last[index] for index in range(len(rows))])

    def _chunks(self, indices: list[int], feeds: list[list[int]]) -> list[list[int]]:
        """Split into passes of similar length: little padding, bounded size."""
        chunks: list[list[int]] = []
        longest = padding = 0
        for index in sorted(indices, key=lambda i: (-len(feeds[i]), i)):
            extra = longest - len(feeds[index])
            padded = longest * (len(chunks[-1]) + 1) if chunks else 0
            if not chunks or padded > self._engine.prefill_tokens or padding + extra > max(256, padded // 4):
                chunks.append([])
                longest, padding, extra = len(feeds[index]), 0, 0
            chunks[-1].append(index)
            padding += extra
        return chunks

    # ---- decode

    def _decode(
        self,
        rows: Sequence[int],
        hidden_ND: torch.Tensor,
        max_new_tokens: Sequence[int],
        uniforms: Sequence[np.ndarray],
    ) -> list[Generated]:
        engine = self._engine
        longest = max(max_new_tokens)
        index_of = {row: index for index, row in enumerate(rows)}
        sampled: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        ended = [False] * len(rows)
        table = np.zeros((len(rows), longest))
        for index, (limit, draws) in enumerate(zip(max_new_tokens, uniforms, strict=True)):
            if self._temperature > 0:
                table[index, :limit] = draws[:limit]
        uniforms_NT = torch.from_numpy(table).to(self._device)

        self._bring_to_front(list(rows))
        order = [index_of[int(row)] for row in self._row_at[: len(rows)]]
        hidden_ND = hidden_ND[order]
        starts = np.array([self._cached[rows[index]] for index in order])
        alive = np.ones(len(order), dtype=bool)
        for step in range(longest):
            uniforms_N = uniforms_NT[order, step]
            ids_N, logprobs_N = sample(engine.logits(hidden_ND), self._temperature, uniforms_N, self._top_p)
            for place, (token, logprob) in enumerate(zip(ids_N.tolist(), logprobs_N.tolist(), strict=True)):
                if not alive[place]:
                    continue
                index = order[place]
                sampled[index].append(token)
                logprobs[index].append(logprob)
                ended[index] = token == engine.end_token_id
                if ended[index] or step + 1 >= max_new_tokens[index]:
                    alive[place] = False
                    self._token_ids[rows[index]] += sampled[index]
                    self._cached[rows[index]] = starts[place]
            count = int(alive.sum())
            if count == 0:
                break
            if count < COMPACT_BELOW * len(order):
                place_of = {index: place for place, index in enumerate(order)}
                still = [rows[index] for place, index in enumerate(order) if alive[place]]
                self._bring_to_front(still, int(starts.max()) + 1)
                order = [index_of[int(row)] for row in self._row_at[:count]]
                places = [place_of[index] for index in order]
                ids_N, starts, alive = ids_N[places], starts[places], alive[places]
            engine.tokens_fed += count
            hidden_ND = self._decode_pass(ids_N, torch.from_numpy(starts).to(self._device))
            starts = starts + alive
        engine.tokens_generated += sum(map(len, sampled))
        return [Generated(*reply, engine.weight_version) for reply in zip(sampled, logprobs, ended, strict=True)]

    def _bring_to_front(self, rows: list[int], length: int = 0) -> None:
        """Swap ``rows`` into the first physical rows; ``length``: positions in use beyond the noted ones."""
        count = len(rows)
        outside = [row for row in rows if self._physical[row] >= count]
        if not outside:
            return
        wanted = set(rows)
        intruders = [int(row) for row in self._row_at[:count] if int(row) not in wanted]
        first, second = [int(self._physical[row]) for row in outside], [int(self._physical[row]) for row in intruders]
        self._cache.swap_rows(first, second, max(length, int(self._cached.max()) + 1))
        for row, place in zip(outside + intruders, second + first, strict=True):
            self._physical[row] = place
            self._row_at[place] = row

    # ---- forward passes

    def _pass(self, rows: list[int], feeds: list[list[int]]) -> torch.Tensor:
        """One right-padded pass over ``rows`` (ascending physical order); hidden states [n, T, D]."""
        width = max(map(len, feeds))
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for place, feed in enumerate(feeds):
            ids[place, : len(feed)] = feed
        refuse_foreign_ids(self._engine.model, int(ids.max()))
        self._engine.tokens_fed += sum(map(len, feeds))
        physical = self._physical[rows]
        at_front = bool((physical == np.arange(len(rows))).all())
        return self._forward(
            torch.from_numpy(ids).to(self._device),
            torch.from_numpy(self._cached[rows]).to(self._device),
            None if at_front else torch.from_numpy(physical).to(self._device),
        )

    def _decode_pass(self, ids_N: torch.Tensor, starts_N: torch.Tensor) -> torch.Tensor:
        """One token for each of the first N physical rows; hidden states [N, D]."""
        return self._forward(ids_N.unsqueeze(1), starts_N, None)[:, 0]

    def _forward(self, ids_nT: torch.Tensor, starts_n: torch.Tensor, physical: torch.Tensor | None) -> torch.Tensor:
        count, width = ids_nT.shape
        cache, model = self._cache, self._engine.model
        cache.begin_pass(physical, count, starts_n, width)
        if cache.visible > self._engine.max_positions + width:
            raise ModelError(
                f"an episode of more than {self._engine.max_positions} tokens exceeds the model's positions; "
                "lower max_episode_tokens"
            )
        positions_nT = starts_n.unsqueeze(1) + torch.arange(width, device=self._device)
        hidden_later = torch.arange(cache.visible, device=self._device) > positions_nT.unsqueeze(-1)
        mask = torch.zeros(hidden_later.shape, dtype=model.dtype, device=self._device)
        mask.masked_fill_(hidden_later, torch.finfo(model.dtype).min)
        before = cache.writes
        states = hidden_states(
            model,
            input_ids=ids_nT,
            attention_mask=mask.unsqueeze(1),
            position_ids=positions_nT,
            past_key_values=cache,
            use_cache=True,
        )
        if cache.writes != before + len(cache.layers):
            raise ModelError(
                f"{type(model).__name__} wrote {cache.writes - before} of {len(cache.layers)} layers into the cache: "
                "this version of transformers names the cache argument differently; the policy would have no memory"
            )
        return states


def _check_attention(model: PreTrainedModel) -> None:
    config = model.config
    implementation = config._attn_implementation
    if implementation not in ("sdpa", "eager"):
        raise ModelError(f"attention {implementation!r} takes no explicit mask; load the model with 'sdpa' or 'eager'")
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) is not None and not hasattr(config, "layer_types")
    if layer_types != {"full_attention"} or sliding:
        raise ModelError(f"{type(model).__name__} has layers other than full attention ({sorted(layer_types)})")
