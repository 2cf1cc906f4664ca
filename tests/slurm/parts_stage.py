"""A stage of the tests with equal parts: each squares its share of 0..N-1, the closing call adds all up.

``--fail-once PART``: that part fails the first time it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fail-once", type=int)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--closing-seconds", type=float, default=0.0)
    args = parser.parse_args()
    shares = args.out.with_name("shares")
    shares.mkdir(exist_ok=True)
    part, parts = os.environ.get("STAGE_PART"), int(os.environ.get("STAGE_PARTS", "1"))
    if part is None:
        time.sleep(args.closing_seconds)
        found = sorted(shares.glob("*.txt"))
        args.out.write_text(f"{sum(int(path.read_text()) for path in found)} from {len(found)} shares\n")
        return
    with (shares / f"{part}.runs").open("a") as runs:
        runs.write("run\n")
    time.sleep(args.seconds)
    failed = shares / f"{part}.failed"
    if args.fail_once == int(part) and not failed.exists():
        failed.touch()
        sys.exit(f"part {part} has a headache")
    (shares / f"{part}.txt").write_text(str(sum(n * n for n in range(int(part), args.items, parts))))


if __name__ == "__main__":
    main()
