"""A headless Chromium, driven over the pipe of its own protocol (DevTools): no package beside the browser is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
MOST_S = 240.0
KEYS = {"ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35, "Enter": 13, "Escape": 27, "Tab": 9}


def find_browser() -> str | None:
    """Path of an installed Chromium."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class HeadlessBrowser:
    """One page of one browser process. The network is off from the start: a page has what it brings along."""

    def __init__(self, executable: str, profile: Path, width: int = 1280, height: int = 900) -> None:
        self.events: list[dict[str, Any]] = []
        self._number = 0
        self._rest = b""
        read_by_browser, self._out = os.pipe()
        self._in, written_by_browser = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        # The protocol's pipes are the descriptors 3 and 4 of the browser.
        command = f'exec 3<&{read_by_browser} 4>&{written_by_browser}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", executable, *options, f"--user-data-dir={profile}"],
            pass_fds=(read_by_browser, written_by_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_browser)
        os.close(written_by_browser)
        self._session = ""
        target = self.send("Target.createTarget", url="about:blank", width=width, height=height)["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def __enter__(self) -> HeadlessBrowser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; its result. Events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + MOST_S
        while time.monotonic() < deadline:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)
        raise TimeoutError(method)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._in, 1 << 16)
            if not read:
                raise RuntimeError("the browser ended")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, path: Path, fragment: str = "", dark: bool = False) -> None:
        """Load a file and wait until it is there."""
        theme = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=f"{path.resolve().as_uri()}{fragment}")
        deadline = time.monotonic() + MOST_S
        while self.value("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """A key as a person presses it, at whatever has the focus."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def choose(self, name: str, value: str) -> None:
        """Set one of the filters."""
        self.value(
            f"(() => {{ const s = document.querySelector('[data-filter={name}]'); s.value = {json.dumps(value)};"
            " s.dispatchEvent(new Event('input', {bubbles: true})); return s.value; })()"
        )

    def screenshot(self, selector: str = "") -> bytes:
        """PNG of the view, or of the view scrolled to an element."""
        import base64

        if selector:
            self.value(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{behavior: 'instant'}})")
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    @property
    def troubles(self) -> list[str]:
        """Exceptions of the page, errors in its log, and requests for anything outside the file."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(parameters["entry"]["text"])
            elif event.get("method") == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:", "about:")):
                    found.append(f"request for {url}")
        return found
