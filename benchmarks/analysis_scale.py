"""Seconds and memory of the analysis on SYNTHETIC runs of the paper's size, against the number of steps and of runs.

Writes the runs that are not there yet below DIR (110 MB per 1,000 steps), compacts them, and makes every table and
figure that a grid of methods has in one process, its report in a second, and both as a user does: by Snakemake on two
cores, a process for each (the products of ``EXPERIMENT``). Prints one row per size and form: wall-clock seconds,
seconds of the processor (steadier on a shared machine) and the peak memory of the largest process.

    python -m benchmarks.analysis_scale --out DIR --sizes 500x1 1000x1 1000x3
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from analysis.synthetic_scale import write_experiment
from rised.config.paths import add_named_path, required
from rised.records.compaction import compact

REPOSITORY = Path(__file__).resolve().parent.parent
METHODS = ("grpo_64", "rised", "round_robin_variance", "global_variance", "grpo_128", "all_rubric_sd")
EXPERIMENT = "paper_qwen25_3b"
TAGS_PER_STEP = 128 * 8 * 59
MEASURED = """
import resource, sys, time
from pathlib import Path
begun = time.monotonic()
from analysis.figures import style
from analysis.frames import Frames
from analysis.registry import build_figures, build_tables, modules
from analysis.report.page import render
from analysis.runs import find_experiment
frames = Frames(find_experiment(Path(sys.argv[1])))
of_others = {"table1", "table7", "table8", "transfer", "audit"}
names = {kind: [name for name in modules(kind) if name not in of_others] for kind in ("tables", "figures")}
if sys.argv[2] == "report":
    render(frames, names["tables"], names["figures"])
else:
    build_tables(frames, names["tables"])
    for figure in build_figures(frames, names["figures"]).values():
        style.png_bytes(figure.draw(style.LIGHT))
used = resource.getrusage(resource.RUSAGE_SELF)
print(time.monotonic() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20)
"""


def measure(folder: Path, what: str) -> tuple[float, float, float]:
    """Wall-clock and processor seconds and peak GiB of one process."""
    command = [sys.executable, "-c", MEASURED, str(folder), what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, processor, memory = map(float, done.stdout.split())
    return wall, processor, memory


def measure_snakemake(folder: Path, out: Path) -> tuple[float, float, float]:
    """The same of ``snakemake report`` and all its processes."""
    shutil.rmtree(out, ignore_errors=True)
    options = ["--config", f"experiment={EXPERIMENT}", f"runs={folder}", f"results={out}"]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "snakemake", "--quiet", "all", "--cores", "2", "report", *options]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begun, processor, used.ru_maxrss / 2**20


def prepare(root: Path, steps: int, runs: int) -> dict[str, Path]:
    """The folders of ``runs`` runs of ``steps`` steps, as they were written and compacted; a run is written once."""
    folders = {form: root / f"{form}-{steps}x{runs}" for form in ("full", "compacted")}
    for i in range(runs):
        method, seed = METHODS[i % len(METHODS)], i // len(METHODS)
        name = f"{method}/seed-{seed}"
        if not (folders["compacted"] / name / "compacted.json").is_file():
            write_experiment(folders["full"], (method,), (seed,), steps)
            begun = time.monotonic()
            compact(folders["full"] / name, folders["compacted"] / name)
            print(f"compacted {steps} steps in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return folders


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the analysis at the paper's size")
    add_named_path(parser, "out", "folder for the runs")
    parser.add_argument(
        "--sizes", nargs="+", default=["500x1", "1000x1", "1000x3"], help="steps x runs (default: 500x1 1000x1 1000x3)"
    )
    options = parser.parse_args()
    out = required(parser, options, "out")
    print("| steps × runs | tags, millions | form | made | wall, s | processor, s | peak, GiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for size in options.sizes:
        steps, runs = map(int, size.split("x"))
        tags = steps * runs * TAGS_PER_STEP / 1e6
        for form, folder in prepare(out, steps, runs).items():
            for what in ("tables and figures", "report", "snakemake report"):
                by_user = what.startswith("snakemake")
                made = measure_snakemake(folder.resolve(), out / "made") if by_user else None
                wall, processor, memory = made or measure(folder, what.split()[0])
                row = (
                    f"{steps:,} × {runs} | {tags:,.0f} | {form} | {what} | {wall:.1f} | {processor:.1f} | {memory:.2f}"
                )
                print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
