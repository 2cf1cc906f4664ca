"""What is sent to a vLLM server for one reply, and what a reply must be to be believed.

The route is `/inference/v1/generate`, which takes and gives token ids. Nothing here is decoded or encoded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rised.models.errors import ModelError
from rised.models.protocols import Answer, Generated, GenerationRequest

GENERATE = "/inference/v1/generate"
FLOOR_LOGPROB = -9999.0
"""What vLLM writes for every log-probability below it."""


class ReplicaFault(Exception):
    """A server gave no reply, or one that cannot be right. The request is asked again."""


class ReplicaPaused(ReplicaFault):
    """A server takes no requests just now, as vLLM says from 0.33 on while its weights change (status 503)."""


def request_body(request: GenerationRequest, end_token_id: int) -> dict[str, Any]:
    """The whole distribution at the request's temperature; the end token alone ends a reply before its limit.

    ``ignore_eos``: a model's own list of end tokens may hold others than the chat template's.
    """
    return {
        "token_ids": list(request.token_ids),
        "return_token_ids": True,
        "sampling_params": {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "seed": request.seed,
            "max_tokens": request.max_new_tokens,
            "logprobs": 0,
            "stop_token_ids": [end_token_id],
            "ignore_eos": True,
            "detokenize": False,
        },
    }


def read_answer(body: Any, request: GenerationRequest, end_token_id: int) -> tuple[Answer, int]:
    """The answer, and how many of its prompt's positions were computed for it.

    ReplicaFault for a reply of another form or length; ModelError if several versions of the weights sampled it.
    """
    try:
        (choice,) = body["choices"]
        prompt_ids = [int(token) for token in body["prompt_token_ids"]]
        token_ids = [int(token) for token in choice["token_ids"]]
        content = choice["logprobs"]["content"]
        sampled = [int(entry["token_id"]) for entry in content]
        logprobs = [_logprob(entry["logprob"]) for entry in content]
        reason = str(choice["finish_reason"])
        spans = choice["weight_versions"]
        versions = [str(span["version"]) for span in spans]
        fed = len(prompt_ids) - int((body["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReplicaFault(f"an answer of another form ({type(error).__name__}: {error})") from None
    ended = bool(token_ids) and token_ids[-1] == end_token_id
    _refuse(request, token_ids, sampled, reason, ended, end_token_id)
    if len(set(versions)) > 1:
        raise ModelError(f"one reply was sampled by several versions of the weights: {', '.join(versions)}")
    reply = Generated(token_ids, logprobs, ended, _version(versions))
    return Answer(reply, prompt_ids), fed


def _logprob(value: Any) -> float:
    """null is NaN, and vLLM's floor stands for −inf, which JSON lacks: the learner leaves such tokens out."""
    if value is None:
        return math.nan
    return float(value) if value > FLOOR_LOGPROB else -math.inf


def _refuse(
    request: GenerationRequest,
    token_ids: Sequence[int],
    sampled: Sequence[int],
    reason: str,
    ended: bool,
    end_token_id: int,
) -> None:
    count, limit = len(token_ids), request.max_new_tokens
    if reason not in ("stop", "length"):
        raise ReplicaFault(f"an answer that ended by {reason!r}")
    if sampled != list(token_ids):
        raise ReplicaFault(f"{count} tokens with the log-probabilities of {len(sampled)} others")
    if not 1 <= count <= limit or (not ended and count < limit):
        raise ReplicaFault(
            f"{count} tokens {'with' if ended else 'without'} an end token, where {limit} were asked for"
        )
    if end_token_id in token_ids[:-1]:
        raise ReplicaFault("tokens behind the end token")


def _version(versions: Sequence[str]) -> int:
    try:
        return int(versions[0])
    except (ValueError, IndexError):
        raise ReplicaFault(f"an answer of unnamed weights ({versions})") from None


def error_text(body: Mapping[str, Any] | Any) -> str:
    """What the server says is wrong with a request."""
    error = body.get("error") if isinstance(body, Mapping) else None
    return str(error.get("message", error) if isinstance(error, Mapping) else error or body)[:500]
