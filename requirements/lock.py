"""Write the lock files: for each extra, every distribution that it needs, pinned as installed here.

    python requirements/lock.py            writes requirements/{analysis,cpu,dev}.txt from the current environment

Local version labels (torch's +cpu) are left out, so that a lock serves any index. A missing distribution is an error.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
LOCKED = {"analysis": ["analysis"], "cpu": ["cpu"], "dev": ["cpu", "smollm2", "trackers", "deepspeed", "dev"]}


def closure(requirements: list[str]) -> dict[str, str]:
    """Canonical name -> installed version of everything that ``requirements`` pull in on this platform."""
    pins: dict[str, str] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    queue = [Requirement(text) for text in requirements]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        extras = frozenset(requirement.extras)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            sys.exit(f"{requirement} is not installed here: install it, then lock again")
        if not requirement.specifier.contains(found.version, prereleases=True):
            sys.exit(f"{name} {found.version} is installed, {requirement} is asked for")
        pins[name] = found.version.split("+")[0]
        for text in found.requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras or {""}):
                queue.append(needed)
    return pins


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    for name, parts in LOCKED.items():
        wanted = list(project["dependencies"])
        pending = list(parts)
        while pending:
            for text in extras[pending.pop()]:
                if text.startswith("rised["):
                    pending.append(text[len("rised[") : -1])
                else:
                    wanted.append(text)
        pins = closure(wanted)
        lines = [f"{key}=={version}" for key, version in sorted(pins.items())]
        (HERE / f"{name}.txt").write_text(
            f"# Written by requirements/lock.py; {len(lines)} distributions.\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
