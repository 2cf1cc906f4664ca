"""A real HTTP server process that plays a judge model's server, and the handle by which tests script it.

    python tests/scripted_judge_server.py --host 127.0.0.1 --port 8000

Each chat completion takes the next behaviour of the script (``ok`` when it is used up). ``ok`` is a valid reply to the
schema of the request: the first rubric shown in turn 0, all others absent, or rising scores of a rubric bundle;
``discovery`` answers as the scripted stand-in of rubric discovery does, and so does ``ok`` for any other schema. Run
with ``--unready FILE`` it is healthy only while that file is missing; with ``--doomed FILE`` it ends at once while that
file exists.
A behaviour waits ``after_s`` seconds first, and until ``together`` requests were in flight at once.
``--latency`` is how long an unscripted reply takes, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

STARTED_WITHIN_S = 90.0
Behaviour = Mapping[str, Any]


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.round = getattr(self, "round", 0) + 1
        self.script: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.in_flight = self.most_in_flight = 0


STATE = _State()


def ok_reply(body: Mapping[str, Any]) -> str:
    entries = body["response_format"]["json_schema"]["schema"]["properties"]["tags"]["prefixItems"]
    tags = []
    for place, entry in enumerate(entries):
        shown, absent = (alternative["properties"] for alternative in entry["anyOf"])
        chosen = shown if place == 0 else absent
        state = chosen["state"]["enum"][0]
        tags.append({"id": chosen["id"]["const"], "evidence_turn": 0 if place == 0 else None, "state": state})
    return json.dumps({"tags": tags})


def scores_reply(body: Mapping[str, Any]) -> str:
    """Scores of a rubric bundle: attempt i of G gets i / G for every criterion."""
    scores = body["response_format"]["json_schema"]["schema"]["properties"]["scores"]
    count, criteria = scores["minItems"], scores["items"]["minItems"]
    return json.dumps({"scores": [[i / count] * criteria for i in range(count)]})


def _schema_name(body: Mapping[str, Any]) -> str:
    return str(body.get("response_format", {}).get("json_schema", {}).get("name", "tags"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    unready: Path | None = None
    latency_s = 0.0

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            ready = self.unready is None or not self.unready.exists()
            self._send(200 if ready else 503, "")
        elif self.path == "/state":
            self._send(200, json.dumps({"pid": os.getpid(), "argv": sys.argv, "cuda": os.getenv("CUDA_VISIBLE_DEVICES"),
                                        "requests": STATE.requests, "most": STATE.most_in_flight,
                                        "in_flight": STATE.in_flight}))  # fmt: skip
        else:
            self._send(404, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or "null")
        if self.path == "/script":
            with STATE.lock:
                STATE.reset()
                STATE.script = body
            self._send(200, "")
            return
        if self.path != "/v1/chat/completions":
            self._send(404, json.dumps({"detail": "Not Found"}))
            return
        with STATE.lock:
            behaviour = STATE.script.pop(0) if STATE.script else {"kind": "ok", "after_s": self.latency_s}
            headers = {name.lower(): value for name, value in self.headers.items()}
            STATE.requests.append({"body": body, "headers": headers})
            round_ = STATE.round
            STATE.in_flight += 1
            STATE.most_in_flight = max(STATE.most_in_flight, STATE.in_flight)
        try:
            self._act(behaviour, body)
        finally:
            with STATE.lock:
                STATE.in_flight -= round_ == STATE.round  # one of an earlier script may still sleep

    def _act(self, behaviour: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        time.sleep(behaviour.get("after_s", 0))
        wait_until(lambda: STATE.most_in_flight >= behaviour.get("together", 0))
        kind = behaviour["kind"]
        if kind == "ok" and _schema_name(body) == "bundle_scores":
            self._complete(scores_reply(body), "stop")
        elif kind == "discovery" or (kind == "ok" and _schema_name(body) != "tags"):
            sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # before tests/rubric_discovery
            from rubric_discovery.scripted_model import answer

            self._complete(answer(_schema_name(body), body["messages"]), "stop")
        elif kind == "ok":
            self._complete(ok_reply(body), "stop")
        elif kind == "text":
            text = behaviour["text"]
            text = text.replace("$OK", ok_reply(body)) if "$OK" in text else text
            self._complete(text, behaviour.get("finish_reason", "stop"))
        elif kind == "message":
            self._send(200, json.dumps({"choices": [{"message": behaviour["message"], "finish_reason": "stop"}]}))
        elif kind == "status":
            self._send(behaviour["status"], behaviour.get("body", ""), behaviour.get("headers", {}))
        elif kind == "raw":
            self._send(200, behaviour["body"])
        elif kind == "big":
            self._send(200, "x" * behaviour["bytes"])
        elif kind == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{half")
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif kind == "die":
            os._exit(3)

    def _complete(self, text: str, finish_reason: str) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
        self._send(200, json.dumps({"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 20}}))

    def _send(self, status: int, body: str, headers: Mapping[str, str] | None = None) -> None:
        data = body.encode()
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client has gone
            self.close_connection = True


def free_port() -> int:
    """A free port, with free ones above it, where the kernel takes none for outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def command(*options: str) -> list[str]:
    """The server's command as ``judge_server.command`` takes it."""
    return ["{python}", str(Path(__file__).resolve()), "--host", "{host}", "--port", "{port}", *options]


class ScriptedServer:
    """One server process. A context manager: the process ends with it."""

    def __init__(self, port: int | None = None, latency_s: float = 0.0) -> None:
        self.port, self.latency_s = port or free_port(), latency_s
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(trust_env=False, timeout=60)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def __enter__(self) -> ScriptedServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.close()

    def start(self) -> None:
        words = [sys.executable, str(Path(__file__).resolve()), "--port", str(self.port)]
        words += ["--latency", str(self.latency_s)]
        self._process = subprocess.Popen(words)
        wait_until(self.healthy)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def healthy(self) -> bool:
        try:
            return self._client.get(f"{self.root}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def script(self, *behaviours: Behaviour) -> None:
        """Forget what happened, and do these next."""
        self._client.post(f"{self.root}/script", content=json.dumps(behaviours)).raise_for_status()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get(f"{self.root}/state").json()
        return found

    def requests(self) -> list[dict[str, Any]]:
        """Bodies and headers (lower-case names) of the chat completions asked for since the last script."""
        found: list[dict[str, Any]] = self.state()["requests"]
        return found


def wait_until(true: Any, timeout_s: float = STARTED_WITHIN_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--unready", type=Path)
    parser.add_argument("--doomed", type=Path)
    args = parser.parse_args(arguments)
    if args.doomed is not None and args.doomed.exists():
        sys.exit("CUDA out of memory: this server is doomed")
    _Handler.unready, _Handler.latency_s = args.unready, args.latency
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer((args.host, args.port), _Handler)
    server.daemon_threads = True
    print(f"listening at {args.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
