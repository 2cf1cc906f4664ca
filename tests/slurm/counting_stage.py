"""A stage of the tests: counts to N in a file, one line a step, resumes from it, and writes its output at the end.

SIGUSR2 ends it after the current step, as it ends the train stage. ``--fail-at`` raises at a step.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

stop = False


def ask(*_: object) -> None:
    global stop
    stop = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.1, help="a step's length")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--rendezvous", action="store_true", help="meet the other ranks with gloo and sum the ranks")
    parser.add_argument("--fail-rank", type=int)
    parser.add_argument("--config", type=Path, help="a file to print first")
    args = parser.parse_args()
    if args.config is not None:
        print(f"{args.config.read_text()}read from {args.config}", flush=True)
    signal.signal(signal.SIGUSR2, ask)
    counts = args.out.with_name(f"{args.out.name}.steps")
    done = len(counts.read_text().split()) if counts.exists() else 0
    print(f"starts at {done}, job {os.getenv('SLURM_JOB_ID')}", flush=True)
    for step in range(done + 1, args.steps + 1):
        time.sleep(args.seconds)
        if step == args.fail_at:
            raise ValueError("the third egg is rotten")
        with counts.open("a") as stream:
            stream.write(f"{step}\n")
        print(f"step {step}", flush=True)
        if stop:
            sys.exit(75)
    if args.fail_rank is not None and args.fail_rank == int(os.environ["RANK"]):
        sys.exit(f"rank {args.fail_rank} has lost its way")
    if args.rendezvous:
        meet(args.out)
    else:
        args.out.write_text(f"{args.steps} steps\n")


def meet(out: Path) -> None:
    import torch
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    total = torch.tensor([float(distributed.get_rank())])
    distributed.all_reduce(total)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if distributed.get_rank() == 0:
        out.write_text(f"{distributed.get_world_size()} ranks, sum {total.item():.0f}, gpus {gpus}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
