"""Chromium, driven through a pipe by its DevTools protocol: messages are JSON, each ended by a zero byte.

Nothing but the standard library and a `chromium` is needed, and nothing listens on a port.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio")
START = """
import fcntl, os, sys
high = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
os.dup2(high[0], 3), os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0
"""Seconds to wait for an answer, and for a page to be loaded."""


class BrowserError(RuntimeError):
    """Chromium is missing, ended, or refused a command."""


class Browser:
    """One Chromium and one page in it, whose size and colours are set before an address is opened.

    Args:
        process: Chromium.
        to: the file descriptor that commands are written to.
        back: the file descriptor that answers are read from.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", to: int, back: int) -> None:
        self.process, self.to, self.back = process, to, back
        self.waiting = b""
        self.number = 0
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, command: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come meanwhile are kept in `events`."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": command, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self.number:
                if "error" in found:
                    raise BrowserError(f"{command}: {found['error'].get('message')}")
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.waiting:
            part = os.read(self.back, 1 << 20)
            if not part:
                raise BrowserError("Chromium ended")
            self.waiting += part
        line, self.waiting = self.waiting.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the window, and which colours pages are told that the user prefers; below 500 pixels it is a phone."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Go to an address, and wait until the page and its fonts are there."""
        self.events.clear()
        if error := self.call("Page.navigate", url=address).get("errorText"):
            raise BrowserError(f"{address}: {error}")
        end = time.monotonic() + PATIENCE
        while self.value("document.readyState") != "complete":
            if time.monotonic() > end:
                raise BrowserError(f"{address}: not loaded after {PATIENCE:g} s")
            time.sleep(0.05)
        self.value("document.fonts.ready.then(() => 1)")

    def value(self, script: str) -> Any:
        """The value of an expression in the page, a promise's when it is there."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {found['exceptionDetails'].get('text')}")
        return found["result"].get("value")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what the window shows, or all of the page, to a PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def requested(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium of one's own, ended with the block.

    Raises:
        BrowserError: none is installed.
    """
    name = next((found for each in NAMES if (found := shutil.which(each))), None)
    if name is None:
        raise BrowserError(f"none of {', '.join(NAMES)} is installed: apt-get install chromium fonts-dejavu-core")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        theirs, to = os.pipe()
        back, mine = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        command = [name, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        start = [sys.executable, "-c", START, str(theirs), str(mine), *command]
        null = subprocess.DEVNULL
        process = subprocess.Popen(start, pass_fds=(theirs, mine), stdout=null, stderr=null)
        os.close(theirs)
        os.close(mine)
        try:
            yield Browser(process, to, back)
        finally:
            process.terminate()
            process.wait(timeout=30)
            os.close(to)
            os.close(back)
