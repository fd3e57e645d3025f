"""A headless Chromium for tests, driven through its debugging pipe; nothing but the browser is
needed.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Names of the browser on different systems.
NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Waits until the page has drawn its charts and the next two frames are done.
_READY = """new Promise((done) => {
  const look = () => document.documentElement.dataset.drawn === undefined ? setTimeout(look, 20)
    : requestAnimationFrame(() => requestAnimationFrame(() => done(true)));
  look();
})"""


def find_chromium() -> str | None:
    """The path of the browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Seen:
    """What happened while a page was open: messages and errors of its scripts, and the addresses
    that it loaded, its own left out.
    """

    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class Chromium:
    """A browser with one open page."""

    def __init__(self, path: str, profile: Path):
        to_read, to_write = os.pipe(), os.pipe()  # of the browser: 3 and 4
        command = [
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
            "--hide-scrollbars", "about:blank",
        ]  # fmt: skip
        shell = f'exec "$@" 3<&{to_read[0]} 4>&{to_write[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *command],
            pass_fds=(to_read[0], to_write[1]), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read[0])
        os.close(to_write[1])
        self._out, self._in = os.fdopen(to_read[1], "wb"), os.fdopen(to_write[0], "rb")
        self._number, self._rest, self._session = 0, b"", ""
        self.seen, self._loaded = Seen(), False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._in.close()

    def open(self, page: Path, width: int, dark: bool, height: int = 900) -> Seen:
        """Open a file at a width in pixels, and wait until it is drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        self._navigate("about:blank")
        self.seen = Seen()
        self._navigate(page.as_uri())
        self.evaluate(_READY)
        self.seen.requests = [url for url in self.seen.requests if url != page.as_uri()]
        return self.seen

    def _navigate(self, url: str) -> None:
        """Load a page, and wait until it is loaded."""
        self._loaded = False
        self._call("Page.navigate", url=url)
        while not self._loaded:
            self._note(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, its result."""
        found = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Write a PNG of the page, or of what fits the window."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in.fileno(), 1 << 20)
            assert part, "chromium has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.consoleAPICalled":
                self.seen.console.append(json.dumps(params["args"]))
            case "Runtime.exceptionThrown":
                found = params["exceptionDetails"]
                thrown = found.get("exception", {}).get("description", found["text"])
                self.seen.console.append(thrown)
            case "Log.entryAdded":
                self.seen.console.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.seen.requests.append(params["request"]["url"])
