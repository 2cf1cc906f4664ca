"""JSON lines over a socket pair, with a deadline and a size limit: how we talk to the engine's processes.

What comes out of a process that runs model-written code is not to be trusted: it may be late, endless or no JSON.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from typing import Any

from rised.environments.base import EnvironmentFault

MAX_ANSWER_BYTES = 64_000_000


class ChannelFault(EnvironmentFault):
    """The process at the other end is gone or does not keep to the protocol."""


class ChannelSilent(ChannelFault):
    """No answer in time."""


class Channel:
    """Our end of a socket pair. One request, one answer."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = (), timeout_s: float = 30.0) -> None:
        """One line; ``descriptors`` travel with its first byte."""
        data = json.dumps(message).encode("ascii") + b"\n"
        self._socket.settimeout(timeout_s)
        try:
            if descriptors:
                sent = socket.send_fds(self._socket, [data], list(descriptors))
                data = data[sent:]
            self._socket.sendall(data)
        except TimeoutError:
            raise ChannelSilent(f"does not read its requests ({timeout_s:g} s)") from None
        except OSError as error:
            raise ChannelFault(f"is gone ({error.strerror or error})") from None

    def receive(self, timeout_s: float, max_bytes: int = MAX_ANSWER_BYTES) -> dict[str, Any]:
        """The next answer's object."""
        deadline = time.monotonic() + timeout_s
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > max_bytes:
                raise ChannelFault(f"sent more than {max_bytes} bytes without an end of line")
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                chunk = self._socket.recv(1 << 20)
            except TimeoutError:
                raise ChannelSilent(f"did not answer within {timeout_s:g} s") from None
            except OSError as error:
                raise ChannelFault(f"is gone ({error.strerror or error})") from None
            if not chunk:
                raise ChannelFault("ended without an answer")
            self._received += chunk
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or ("ok" not in message and "error" not in message):
            raise ChannelFault(f"answered what is no answer: {line[:200]!r}")
        return message

    def close(self) -> None:
        self._socket.close()
