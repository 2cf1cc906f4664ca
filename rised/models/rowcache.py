"""A key/value cache in which every row has its own length.

transformers' caches grow all rows together, so episodes of different length need padding inside the cache. Here each
row is contiguous: a forward pass writes T new positions of some rows at those rows' own ends. Only storage lives here;
which row holds which episode, masks and positions are the engine's business.

Shapes: R physical rows, C capacity, H key/value heads, D head size, n rows of one forward pass, T tokens of each.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, [R, H, C, D]; allocated by the first write."""

    def __init__(self, cache: RowCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        # Zeros, not empty memory: a masked NaN would still reach the output.
        rows, capacity = self._cache.row_count, self._cache.capacity
        self.keys = key_states.new_zeros(rows, key_states.shape[1], capacity, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], capacity, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [n, H, T, D] at the places of the current pass and return all keys and values of its rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache = self._cache
        assert self.keys is not None and self.values is not None
        cache.writes += 1
        index = cache.write_index(self.keys.shape[1])
        views = []
        for stored, new in ((self.keys, key_states), (self.values, value_states)):
            stored.view(-1, stored.shape[3]).index_copy_(0, index, new.reshape(-1, stored.shape[3]))
            rows = stored[: cache.pass_rows, :, : cache.visible]
            views.append(rows if cache.row_index is None else stored[:, :, : cache.visible][cache.row_index])
        return views[0], views[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.visible, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class RowCache(Cache):
    """All layers. Call :meth:`begin_pass` before each forward pass of the model."""

    def __init__(self, layer_count: int, row_count: int, capacity: int) -> None:
        self.row_count = row_count
        self.capacity = capacity
        self.writes = 0
        """Layer writes so far: must grow by the number of layers in every pass."""
        self._write_indices: dict[int, torch.Tensor] = {}
        self._row_places = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, dtype=torch.long)
        self.row_index: torch.Tensor | None = None
        self.pass_rows = 0
        self.visible = 0
        self._row_layers = [RowLayer(self) for _ in range(layer_count)]
        super().__init__(layers=list(self._row_layers))

    def begin_pass(self, rows: torch.Tensor | None, row_count: int, starts_n: torch.Tensor, tokens: int) -> None:
        """Announce a pass of ``tokens`` positions for each row, written from ``starts_n`` on.

        ``rows``: physical rows [n], or None for the first ``row_count`` ones (then nothing is copied).
        """
        end = int(starts_n.max()) + tokens
        if end > self.capacity:
            self._grow(max(end, self.capacity * 3 // 2))
        self._row_places = torch.arange(row_count, device=starts_n.device) if rows is None else rows
        self._positions = starts_n.unsqueeze(1) + torch.arange(tokens, device=starts_n.device)
        self._write_indices.clear()
        self.row_index = rows
        self.pass_rows = row_count
        self.visible = end

    def write_index(self, heads: int) -> torch.Tensor:
        """Flat places [n * heads * T] in a buffer [R * heads * C, D] that the current pass writes to."""
        if heads not in self._write_indices:
            head_places = self._row_places.unsqueeze(1) * heads + torch.arange(heads, device=self._row_places.device)
            index = head_places.unsqueeze(2) * self.capacity + self._positions.unsqueeze(1)
            self._write_indices[heads] = index.reshape(-1)
        return self._write_indices[heads]

    def copy_rows(self, sources: list[int], targets: list[int], length: int) -> None:
        """Give ``targets`` the first ``length`` positions of ``sources``."""
        for stored in self._buffers():
            stored[targets, :, :length] = stored[sources, :, :length]

    def swap_rows(self, first: list[int], second: list[int], length: int) -> None:
        """Exchange the first ``length`` positions of the rows ``first`` with those of ``second``."""
        for stored in self._buffers():
            moved = stored[first + second, :, :length]
            stored[second + first, :, :length] = moved

    def _grow(self, capacity: int) -> None:
        for layer in self._row_layers:
            if layer.is_initialized:
                for name in ("keys", "values"):
                    old = getattr(layer, name)
                    new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
                    new[:, :, : old.shape[2]] = old
                    setattr(layer, name, new)
        self.capacity = capacity

    def _buffers(self) -> list[torch.Tensor]:
        stored = [buffer for layer in self._row_layers for buffer in (layer.keys, layer.values)]
        return [buffer for buffer in stored if buffer is not None]
