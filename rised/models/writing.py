"""Texts that the policy writes outside of episodes, such as rubrics for its own rollouts. Nothing here is trained on.

A text follows from the weights, the request and its seeds alone, as an episode does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rised.models.protocols import Generated, GenerationRequest, RequestEngine, WritingEngine
from rised.models.randomness import episode_uniforms, reply_seed
from rised.models.rendering import ChatRendering


@dataclass(frozen=True, slots=True)
class WritingRequest:
    """One question to the policy, to be answered once for each of ``seeds``.

    ``template_arguments`` are laid over those of the episodes' chat template, for example to turn thinking off.
    """

    system: str
    user: str
    seeds: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    template_arguments: Mapping[str, str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """One answer. ``ended``: the policy ended it itself; ``fits``: False if the question left no room for an answer."""

    text: str
    ended: bool
    fits: bool = True


def writing_seed(run_seed: int, step: int, subject: str, index: int) -> int:
    """A 63-bit seed of one text; a function of the arguments only, and none of an episode's."""
    identity = "\x1f".join(["rised-writing", str(run_seed), str(step), subject, str(index)])
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big") >> 1


def write(engine: WritingEngine, rendering: ChatRendering, request: WritingRequest) -> list[Written]:
    """One text per seed, generated together; the question is computed once."""
    prompt = rendering.start(request.system, request.user)
    count, limit = len(request.seeds), request.max_new_tokens
    if len(prompt) + limit > engine.max_positions:
        return [Written("", False, False)] * count
    if isinstance(engine, RequestEngine):
        replies = _requested(engine, prompt, request)
    else:
        session = engine.session(count, request.temperature, top_p=request.top_p)
        uniforms = [episode_uniforms(seed, limit) for seed in request.seeds]
        replies = session.generate(range(count), [prompt] * count, [limit] * count, uniforms)
    return [Written(rendering.decode(_body(r.token_ids, rendering.end_token_id)), r.ended) for r in replies]


def _requested(engine: RequestEngine, prompt: list[int], request: WritingRequest) -> list[Generated]:
    asked = [
        GenerationRequest(
            token_ids=prompt,
            max_new_tokens=request.max_new_tokens,
            seed=reply_seed(seed, 0),
            temperature=request.temperature,
            top_p=request.top_p,
            affinity=f"text-{request.seeds[0]}",
        )
        for seed in request.seeds
    ]
    return [future.result().reply for future in [engine.submit(one) for one in asked]]


def _body(ids: Sequence[int], end_token_id: int) -> list[int]:
    return [token for token in ids if token != end_token_id]
