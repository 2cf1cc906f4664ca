"""A server of the tests, and a stage that asks it once a step.

The server answers HTTP on loopback and says in a file where; SIGTERM ends it with 0, SIGUSR2 with 75. ``--broken``: it
fails before it answers. The client waits for the file, as a judge's client does when its server moves.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"well")

    def log_message(self, *_: object) -> None:
        pass


def serve(endpoint: Path, broken: bool) -> None:
    if broken:
        sys.exit("the server has no model")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    codes: list[int] = []

    def end(number: int, _: object) -> None:
        codes.append(75 if number == signal.SIGUSR2 else 0)
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR2, end)
    aside = endpoint.with_name(".endpoint")
    record = {"urls": [f"http://127.0.0.1:{server.server_address[1]}"], "job": os.getenv("SLURM_JOB_ID")}
    aside.write_text(json.dumps(record))
    aside.rename(endpoint)
    server.serve_forever(poll_interval=0.1)
    endpoint.unlink(missing_ok=True)
    sys.exit(codes[0])


def ask(endpoint: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            url = json.loads(endpoint.read_text())["urls"][0]
            with urllib.request.urlopen(url, timeout=5) as reply:
                assert reply.read() == b"well"
                return
        except OSError:
            if time.monotonic() > deadline:
                sys.exit("nobody answers")
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", type=Path, required=True)
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds before it answers")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.out is None:
        time.sleep(args.slow)
        serve(args.endpoint, args.broken)
    for step in range(1, args.steps + 1):
        ask(args.endpoint)
        with args.out.with_name(f"{args.out.name}.steps").open("a") as steps:
            steps.write(f"{step}\n")
        if step == args.fail_at:
            sys.exit("the client fell asleep")
        time.sleep(0.2)
    args.out.write_text(f"{args.steps} answers\n")


if __name__ == "__main__":
    main()
