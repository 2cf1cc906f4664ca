"""An HTTP server at a Unix socket that plays a vLLM server badly, and the handle by which tests script it.

    python scripted_vllm_server.py --uds SOCKET --model DIR [--doomed FILE] [--deaf FILE] [--slow SECONDS]

Each generation takes the next behaviour of the script (``ok`` when it is used up). ``ok`` gives tokens that follow from
seed, place and the weights' version. ``--doomed``: it ends at once while that file exists; ``--deaf``: it answers no
health check meanwhile; ``--slow``: how long it reads weights. While it is paused it refuses requests with status 503,
as vLLM does from 0.33 on. Right replies are tested with a real vLLM: this is for those that none gives on demand.
"""

from __future__ import annotations

import argparse
import json
import os
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx

END = 1


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.script: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.version = "default"
        self.weights = ""
        self.abandoned = 0
        self.paused = False
        self.refused = 0


STATE = _State()


def ok_choice(body: dict[str, Any]) -> dict[str, Any]:
    parameters = body["sampling_params"]
    count = parameters["max_tokens"]
    ids = [5 + (parameters["seed"] + place) % 50 for place in range(count - 1)] + [END]
    content = [{"token_id": token, "logprob": -0.5} for token in ids]
    spans = [{"version": STATE.version, "start": 0, "end": count}]
    return {"finish_reason": "stop", "token_ids": ids, "logprobs": {"content": content}, "weight_versions": spans}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    deaf: Path | None = None
    slow_s = 0.0

    def log_message(self, *_: Any) -> None:
        pass

    def address_string(self) -> str:
        return "socket"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(503 if self.deaf and self.deaf.exists() else 200, {})
        elif self.path == "/weight_info":
            self.answer(200, {"weight_version": STATE.version})
        else:
            self.answer(200, {"pid": os.getpid(), **{k: v for k, v in vars(STATE).items() if k != "lock"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        path = self.path.split("?")[0]
        with STATE.lock:
            STATE.calls.append(path)
        if path == "/inference/v1/generate":
            self.generate(body)
        elif path == "/script":
            STATE.script = body["script"]
            self.answer(200, {})
        elif path == "/collective_rpc":
            time.sleep(self.slow_s)
            STATE.weights = body["kwargs"]["weights_path"]
            self.answer(200, {"results": [None]})
        elif path == "/update_weight_version":
            STATE.version = body["new_version"]
            self.answer(200, {})
        else:
            STATE.paused = path == "/pause" if path in ("/pause", "/resume") else STATE.paused
            self.answer(200, {"success": True})

    def generate(self, body: dict[str, Any]) -> None:
        with STATE.lock:
            STATE.requests.append(body)
            behaviour = STATE.script.pop(0) if STATE.script else {"do": "ok"}
        choice = ok_choice(body)
        do = behaviour["do"]
        while do == "wait for a pause" and not STATE.paused:
            time.sleep(0.01)
        if STATE.paused:
            STATE.refused += 1
            self.answer(503, {"error": {"message": "Generation is paused."}})
            return
        if do == "die":
            os._exit(3)
        if do == "sleep":
            time.sleep(behaviour["seconds"])
        if do == "status":
            self.answer(behaviour["code"], {"error": {"message": behaviour.get("message", "no")}})
            return
        if do == "choice":
            choice |= behaviour["change"]
        answer = {"choices": [choice], "prompt_token_ids": body["token_ids"], "usage": {}} | behaviour.get("answer", {})
        try:
            self.answer(200, answer) if do != "text" else self.answer(200, behaviour["text"])
        except OSError:
            STATE.abandoned += 1

    def answer(self, status: int, content: Any) -> None:
        payload = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


class Script:
    """A test's handle on the server at ``socket``."""

    def __init__(self, socket: Path) -> None:
        self._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://server")

    def set(self, *behaviours: dict[str, Any]) -> None:
        self._client.post("/script", json={"script": list(behaviours)})

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get("/state").json()
        return found


def command(*options: str) -> list[str]:
    """For ``engine.command``."""
    return [sys.executable, str(Path(__file__).resolve()), "--uds", "{socket}", "--model", "{weights}", *options]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--doomed", type=Path)
    parser.add_argument("--deaf", type=Path)
    parser.add_argument("--slow", type=float, default=0.0)
    args, _ = parser.parse_known_args()
    if args.doomed and args.doomed.exists():
        print("doomed: the scripted server ends", flush=True)
        sys.exit(4)
    _Handler.deaf, _Handler.slow_s = args.deaf, args.slow
    STATE.weights = args.model
    with _Server(args.uds, _Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
