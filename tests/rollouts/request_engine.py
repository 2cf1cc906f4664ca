"""A request engine around the transformers engine, and one with scripted replies: for tests of the collector alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from rised.models.engine import TransformersEngine
from rised.models.protocols import Answer, Generated, GenerationRequest
from rised.models.randomness import episode_uniforms


class ThreadedEngine:
    """Answers each request by itself in one of several threads, after a random while. ``replies``: ids to sample.

    Without ``replies`` the model samples, with the request's seed.
    """

    def __init__(
        self,
        engine: TransformersEngine | None,
        end_token_id: int,
        replies: Sequence[Sequence[int]] = (),
        *,
        concurrency: int = 8,
        version: int | None = None,
        delays: tuple[float, float] = (0.0, 0.01),
        forget_a_token: bool = False,
    ) -> None:
        self.engine, self.end_token_id, self.replies = engine, end_token_id, replies
        self.concurrency, self.version, self.delays = concurrency, version, delays
        self.forget_a_token = forget_a_token
        self.max_positions = 1 << 20
        self.tokens_fed = self.tokens_generated = 0
        self.requests: list[GenerationRequest] = []
        self.most_at_once = self._now = 0
        self._lock, self._threads = threading.Lock(), ThreadPoolExecutor(16)
        self._random = random.Random(0)

    def submit(self, request: GenerationRequest) -> Future[Answer]:
        self.requests.append(request)
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            delay = self._random.uniform(*self.delays)
        future = self._threads.submit(self._answer, request, delay)
        future.add_done_callback(lambda _: self._left())
        return future

    def _left(self) -> None:
        with self._lock:
            self._now -= 1

    def _answer(self, request: GenerationRequest, delay: float) -> Answer:
        time.sleep(delay)
        with self._lock:
            reply = self._reply(request)
            self.tokens_fed += len(request.token_ids)
            self.tokens_generated += len(reply.token_ids)
        prompt = list(request.token_ids)
        return Answer(reply, prompt[1:] if self.forget_a_token else prompt)

    def _reply(self, request: GenerationRequest) -> Generated:
        if self.engine is None:
            ids = list(self.replies[request.seed % len(self.replies)])[: request.max_new_tokens]
            return Generated(ids, [-0.5] * len(ids), ids[-1] == self.end_token_id, self.version)
        session = self.engine.session(1, request.temperature)
        uniforms = episode_uniforms(request.seed, request.max_new_tokens)
        (reply,) = session.generate([0], [list(request.token_ids)], [request.max_new_tokens], [uniforms])
        return Generated(reply.token_ids, reply.logprobs, reply.ended, self.version)
