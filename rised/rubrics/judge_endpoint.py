"""Where the judge's servers are: a fixed address, or a file that the serving stage keeps up to date.

Replicas are used by load. One that fails is left out for a while and then tried with a single request. The file is
read again when it changes, since a requeued server comes back at another address. No HTTP here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rised.rubrics.base import RubricError

log = logging.getLogger(__name__)
POLL_S = 0.5
"""Between two looks at the endpoint file, and at replicas that rest."""
FORM = "give `http://host:port/v1`, or the file that stages.serve_judge writes"


class ServerGone(Exception):
    """No replica could be reached for as long as one is waited for."""


class Endpoint(BaseModel):
    """The file's content. ``job``: Slurm's id of the serving job, if it is one; ``started``: ISO 8601 with zone."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    urls: list[str]
    model: str = ""
    job: str | None = None
    host: str = ""
    started: str = ""
    pid: int = Field(0, ge=0)


def is_url(endpoint: str) -> bool:
    return "://" in endpoint


def check_url(url: str) -> str:
    """The address without a slash at its end. RubricError unless it is http(s) and holds no user name or password."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise RubricError(f"rubrics.judge.endpoint: {url!r} is no address; {FORM}")
    if "@" in parts.netloc:
        raise RubricError(
            "rubrics.judge.endpoint holds a user name or password, which would be saved with every run; name an "
            "environment variable under rubrics.judge.api_key_env instead"
        )
    return url.rstrip("/")


def read_endpoint(path: Path) -> Endpoint | None:
    """The file's content; None while it is missing or not readable as such (a file system may lag behind)."""
    try:
        return Endpoint.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError):
        return None


@dataclass(slots=True)
class Replica:
    """One server. ``resting_until``: on the monotonic clock; ``suspect``: its last request did not reach it."""

    url: str
    in_flight: int = 0
    resting_until: float = 0.0
    suspect: bool = False

    def ready(self, now: float) -> bool:
        return now >= self.resting_until and not (self.suspect and self.in_flight)


class Replicas:
    """The servers behind one endpoint. Not bound to an event loop, so it outlives the calls that use it.

    ``model``: the name under which they serve; ``rest_s``: how long a failed replica is left out; ``wait_s``: how long
    an outage of all of them is waited for.
    """

    def __init__(self, endpoint: str, model: str, rest_s: float, wait_s: float, poll_s: float = POLL_S) -> None:
        self.model, self.rest_s, self.wait_s, self.poll_s = model, rest_s, wait_s, poll_s
        self.path = None if is_url(endpoint) else Path(endpoint)
        self._replicas = [Replica(check_url(endpoint))] if self.path is None else []
        self._signature: tuple[int, ...] | None = None
        self._looked = float("-inf")
        self._down_since: float | None = None

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self._replicas]

    async def lease(self) -> Replica:
        """The ready replica with the fewest requests in flight; one that has rested is tried first, with one request.

        Give it back with :meth:`answered`, :meth:`failed` or :meth:`gave_up`. Waits while none is ready. ServerGone
        once no replica has answered for ``wait_s``. RubricError if the file is that of another model's servers.
        """
        while True:
            self._refresh()
            now = time.monotonic()
            gone = self._down_since is not None and now - self._down_since >= self.wait_s
            ready = [r for r in self._replicas if r.ready(now) and not (r.suspect and gone)]
            if ready:
                chosen = min(ready, key=lambda replica: (not replica.suspect, replica.in_flight))
                chosen.in_flight += 1
                return chosen
            if gone:
                raise ServerGone(self._outage())
            if self._down_since is None and not any(replica.in_flight for replica in self._replicas):
                self._begin_outage(now)
                continue
            await asyncio.sleep(self.poll_s)

    def hope_again(self) -> None:
        """Count an outage from now on: a new batch of requests may wait as long as the last one did."""
        self._down_since = None

    def answered(self, replica: Replica) -> None:
        """The replica answered, whatever it said."""
        replica.in_flight -= 1
        replica.suspect, replica.resting_until = False, 0.0
        self._down_since = None

    def failed(self, replica: Replica) -> None:
        """The replica could not be reached or broke off: it rests, and the file may know better already."""
        replica.in_flight -= 1
        now = time.monotonic()
        replica.suspect, replica.resting_until = True, now + self.rest_s
        if self._down_since is None and all(other.suspect for other in self._replicas):
            self._begin_outage(now)
        self._looked = float("-inf")

    def gave_up(self, replica: Replica) -> None:
        """The request was abandoned (deadline, cancellation): it says nothing about the replica."""
        replica.in_flight -= 1

    def _begin_outage(self, now: float) -> None:
        self._down_since = now
        where = self.path or ", ".join(self.urls)
        log.warning("no judge server can be reached (%s); waiting for one up to %g s", where, self.wait_s)

    def _refresh(self) -> None:
        """Read the file if it changed, looking at most once in ``poll_s``."""
        now = time.monotonic()
        if self.path is None or now - self._looked < self.poll_s:
            return
        self._looked = now
        signature = None
        with suppress(OSError):
            status = self.path.stat()
            signature = (status.st_mtime_ns, status.st_ino, status.st_size)
        if signature is not None and signature == self._signature:
            return
        endpoint = read_endpoint(self.path)
        self._signature = signature if endpoint is not None else None
        if endpoint is None and signature is not None:
            return  # there, but not readable yet: the replicas known so far stay
        if endpoint is not None and endpoint.model and endpoint.model != self.model:
            raise RubricError(
                f"{self.path} is of servers of {endpoint.model!r}, the judge is {self.model!r}: serve that one, or "
                "name its file as rubrics.judge.endpoint"
            )
        known = {replica.url: replica for replica in self._replicas}
        urls = [check_url(url) for url in dict.fromkeys(endpoint.urls)] if endpoint is not None else []
        self._replicas = [known.get(url) or Replica(url) for url in urls]
        for replica in self._replicas:
            replica.suspect, replica.resting_until = False, 0.0
        if self._replicas:
            self._down_since = None  # somebody found them ready just now

    def _outage(self) -> str:
        if self.path is None:
            return f"{', '.join(self.urls)} could not be reached for {self.wait_s:g} s"
        if not self._replicas:
            state = "names no server" if self.path.exists() else "does not exist"
            return f"the endpoint file {self.path} {state} after {self.wait_s:g} s; is the serving job running?"
        return f"no server of {self.path} ({', '.join(self.urls)}) could be reached for {self.wait_s:g} s"
