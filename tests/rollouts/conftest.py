"""Lets these tests use the helpers of the environments' and models' tests."""

from __future__ import annotations

import sys
from pathlib import Path

for room in ("environments", "models"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / room))
