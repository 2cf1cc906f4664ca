"""Runs a server and ends it, with all that it started, when its starter is gone.

    python -S server_guard.py COMMAND...

The starter holds the other end of standard input: that closes however the starter ends, SIGKILL included. vLLM's engine
and worker processes would outlive it otherwise, with the memory of their GPUs. Standard library only, and no imports of
ours: it starts in a few milliseconds. It leads the process group, so that the starter's signals reach the server.
"""

import os
import signal
import subprocess
import sys
import threading

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


def main() -> int:
    for number in HEEDED:  # an ignored signal would stay ignored in the server
        signal.signal(number, signal.SIG_DFL)
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    for number in HEEDED:
        signal.signal(number, lambda *_: None)  # the server got it too, and its end is the guard's
    threading.Thread(target=_end_with_starter, daemon=True).start()
    return server.wait()


def _end_with_starter() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
