"""What two equal runs must have in common, byte for byte: all files but those of timings and of the process.

Hidden files of the run directory (lock, progress, attempts) tell of the process that made the run.

Used to show that a killed and resumed run ends as an undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rised.records.files import sha256_of
from rised.records.layout import MANIFESTS, TIMINGS


def reproducible_digest(run_dir: Path | str) -> dict[str, str]:
    """Path relative to the run -> SHA-256, without timings shards, their hashes in the manifests, and hidden files."""
    root = Path(run_dir)
    digest = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        of_the_process = path.parent == root and path.name.startswith(".")
        if not path.is_file() or of_the_process or relative.startswith(f"{TIMINGS}/"):
            continue
        if relative.startswith(f"{MANIFESTS}/") and not path.name.startswith("."):
            document = json.loads(path.read_bytes())
            document.pop(TIMINGS, None)
            digest[relative] = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        else:
            digest[relative] = sha256_of(path)
    return digest
