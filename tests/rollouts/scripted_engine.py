"""An engine that "samples" given replies, so that an episode's bookkeeping can be checked token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rised.models.protocols import Generated


class ScriptedEngine:
    """``replies[row][turn]`` are the ids of a reply; one longer than its limit is cut there."""

    def __init__(self, replies: Sequence[Sequence[Sequence[int]]], end_token_id: int, corrupt_turn: int = -1) -> None:
        self.replies = replies
        self.end_token_id = end_token_id
        self.corrupt_turn = corrupt_turn
        self.tokens_fed = self.tokens_generated = 0

    def session(self, row_count: int, temperature: float = 1.0) -> ScriptedSession:
        return ScriptedSession(self, row_count)


class ScriptedSession:
    def __init__(self, engine: ScriptedEngine, row_count: int) -> None:
        self.engine = engine
        self.ids: list[list[int]] = [[] for _ in range(row_count)]
        self.turns = [0] * row_count
        self.uniforms: list[list[float]] = [[] for _ in range(row_count)]

    def token_ids(self, row: int) -> list[int]:
        return self.ids[row]

    def generate(
        self,
        rows: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        max_new_tokens: Sequence[int],
        uniforms: Sequence[np.ndarray],
    ) -> list[Generated]:
        answers = []
        for row, new, limit, draws in zip(rows, new_ids, max_new_tokens, uniforms, strict=True):
            reply = list(self.engine.replies[row][self.turns[row]])[:limit]
            assert len(draws) >= len(reply)
            self.ids[row] += [*new, *reply]
            if self.turns[row] == self.engine.corrupt_turn:
                self.ids[row][0] += 1
            self.turns[row] += 1
            self.engine.tokens_fed += len(new)
            self.engine.tokens_generated += len(reply)
            answers.append(Generated(reply, [-0.5] * len(reply), reply[-1] == self.engine.end_token_id))
        return answers
