"""Stands in for AppWorld's engine: speaks its protocol and misbehaves on request. Standard library only.

The code that an ``execute`` request brings is one word that says how the episode's process behaves.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time

ANSWER = {"output": "fine", "output_chars": 4, "error_type": None, "error": None, "calls": [], "call_count": 0}


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def behave(word: str, end: socket.socket, counter: str) -> None:
    if word == "exit":
        os._exit(7)
    if word == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "hang":
        while True:
            time.sleep(60)
    if word == "deaf-to-all-but-kill":
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "300")
        while True:
            pass
    if word == "junk":
        end.sendall(b"Traceback (most recent call last):\n")
    elif word == "other-json":
        end.sendall(line(["ok"]))
    elif word == "endless":
        while True:
            end.sendall(b"x" * (1 << 20))
    elif word == "half-an-answer":
        end.sendall(line({"ok": ANSWER | {"completed": False}})[:-9])
        os._exit(0)
    elif word == "print-junk":
        print("junk on standard output", flush=True)
        sys.stderr.write("and on standard error\n")
        end.sendall(line({"ok": ANSWER | {"completed": False}}))
    elif word == "engine-error":
        end.sendall(line({"error": "KeyError: 'x'", "traceback": "…"}))
    elif word == "kill-the-engine":
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    elif word.startswith("forge "):
        end.sendall(word.removeprefix("forge ").encode() + b"\n")
    elif word == "count":
        # Differs from process to process, unlike any sound world.
        with open(counter, "a") as file:
            file.write("x")
        output = str(os.path.getsize(counter))
        end.sendall(line({"ok": ANSWER | {"output": output, "completed": False}}))
    else:
        end.sendall(line({"ok": ANSWER | {"output": word, "completed": word.startswith("complete")}}))
    if word == "die-afterwards":
        os._exit(9)


STATES = {
    "complete-with-broken-databases": {"notes.jsonl": "broken"},
    "complete-with-files-elsewhere": {"../notes.jsonl": ""},
    "complete-without-databases": None,
}


def episode(end: socket.socket, folder: str, counter: str) -> None:
    os.setsid()
    requests = end.makefile("rb")
    word = ""
    for text in requests:
        request = json.loads(text)
        if request["op"] == "execute":
            word = request["code"]
            behave(word, end, counter)
        elif request["op"] == "state":
            if word == "complete-and-hang":
                time.sleep(600)
            end.sendall(line({"ok": STATES.get(word, {"notes.jsonl": ""})}))
        elif request["op"] == "open":
            person = {"first_name": "A", "last_name": "B", "email": "a@b.example", "phone_number": "1"}
            end.sendall(line({"ok": {"instruction": "do it", "supervisor": person}}))
        elif request["op"] == "evaluate":
            if "broken" in request["state"].values() or os.path.exists(os.path.join(folder, "data", "broken")):
                end.sendall(line({"error": "OperationalError: no such table"}))
                continue
            truth = os.path.isdir(os.path.join(folder, "data", "tasks", request["task"], "ground_truth"))
            tests = {"success": truth, "tests_passed": 1, "tests_total": 1, "missing_changes": 0, "unwanted_changes": 0}
            end.sendall(line({"ok": tests}))
    os._exit(0)


def main() -> None:
    base = sys.argv[1]
    mode = os.path.basename(sys.argv[0]).removesuffix(".py")
    if mode == "crashes":
        sys.exit("no module named appworld")
    control = socket.socket(fileno=os.dup(0))
    version = "0.0.1" if mode == "old" else "0.1.3.post1"
    control.sendall(b"hello\n" if mode == "babbles" else line({"ok": {"version": version}}))
    children: set[int] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not data:
            break
        request = json.loads(data)
        if request["op"] == "fork":
            pid = os.fork()
            if pid == 0:
                control.close()
                episode(socket.socket(fileno=descriptors[0]), request["folder"], os.path.join(base, "counter"))
            os.close(descriptors[0])
            children.add(pid)
            control.sendall(line({"ok": {"pid": pid}}))
        else:
            for pid in {request["pid"]} & children:
                children.discard(pid)
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            out_of_memory = os.path.exists(os.path.join(base, "out-of-memory"))
            control.sendall(line({"ok": {"ended": "killed", "out_of_memory": out_of_memory}}))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
