"""Runs a server and ends it, with all that it started, when its starter is gone.

    python -S server_guard.py [--shield] [FOLDER...] -- COMMAND...

The starter holds the other end of standard input: that closes however the starter ends, SIGKILL included. vLLM's engine
and worker processes would outlive it otherwise, with the memory of their GPUs. The folders are the starter's own, and
are removed then, too. With --shield the server does not hear SIGTERM and SIGUSR2: Slurm sends them to every process of
a job, and whether to end is the starter's to decide.

Standard library only, and no imports of ours: it starts in a few milliseconds. It leads the process group, so that the
starter's signals reach the server.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
SHIELDED = (signal.SIGTERM, signal.SIGUSR2)


def main() -> int:
    cut = sys.argv.index("--")
    folders, command = sys.argv[1:cut], sys.argv[cut + 1 :]
    if "--shield" in folders:
        folders.remove("--shield")
        # blocked, not ignored: the server's own handlers would take back the latter; children inherit it
        signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
    for number in HEEDED:  # an ignored signal would stay ignored in the server
        signal.signal(number, signal.SIG_DFL)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    for number in HEEDED:
        signal.signal(number, lambda *_: None)  # the server got it too, and its end is the guard's
    threading.Thread(target=_end_with_starter, args=(folders,), daemon=True).start()
    return server.wait()


def _end_with_starter(folders: list[str]) -> None:
    while os.read(0, 4096):
        pass
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
