"""What a launcher and its services tell the person who waits for them."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Output:
    """Lines with the time and a name before them. A terminal that is gone must not keep a launcher from its job."""

    def __init__(self, name: str, stream: TextIO = sys.stdout) -> None:
        self.name, self.stream = name, stream
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        self.write(f"[{time.strftime('%H:%M:%S')}] {self.name}: {text}\n")

    def say_once(self, text: str) -> None:
        """A thing that goes on for long is told when it begins."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def write(self, text: str) -> None:
        """As it is."""
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            pass
