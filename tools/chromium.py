"""Headless Chromium driven over its debugging pipe: pages opened, keys and touches sent, screenshots taken.

It needs the browser and nothing else. No host name resolves in it, so a page that asks for anything outside fails.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-quic"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
)
KEYS = {
    **{"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36},
    **{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40},
}
"""The keys that `Browser.key` can press, each with its Windows virtual key code, which Chromium asks for."""


def path() -> str | None:
    """Where Chromium is installed; None where it is not."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in headless Chromium; every console message and request since it was opened is in `events`.

    Args:
        profile: an empty folder for the browser's own files.

    Raises:
        FileNotFoundError: Chromium is not installed.
    """

    def __init__(self, profile: Path) -> None:
        chromium = path()
        if chromium is None:
            raise FileNotFoundError(f"none of {', '.join(NAMES)} is on the path; install Chromium")
        commands, self._send = os.pipe()
        self._receive, answers = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4; the launcher puts the pipes there.
        launcher = (
            "import fcntl, os, sys; r, w = (fcntl.fcntl(int(a), fcntl.F_DUPFD, 10) for a in sys.argv[1:3]);"
            "os.dup2(r, 3); os.dup2(w, 4); os.execvp(sys.argv[3], sys.argv[3:])"
        )
        command = [sys.executable, "-c", launcher, str(commands), str(answers), chromium, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._count = b"", 0
        self._session: str | None = None
        self._scripts = True
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (answer := self._next_message()).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next_message(self, seconds: float = 20) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self._receive, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("Chromium did not answer in time")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, url: str, width: int = 1280, dark: bool = False, script: bool = True, height: int = 900) -> None:
        """Open a page and wait until it is loaded; below 600 pixels as on a phone with a touch screen."""
        self.events.clear()
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._scripts = script
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def wait_for(self, method: str) -> dict[str, Any]:
        """The parameters of the first event of that name since the page was opened."""
        while not (found := [event for event in self.events if event.get("method") == method]):
            self.events.append(self._next_message())
        params: dict[str, Any] = found[0]["params"]
        return params

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def centre(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """The middle of the first such element, or another share of its size, once it was scrolled into view."""
        self.js(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        self.settle()
        box = self.js(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        return box["x"] + across * box["width"], box["y"] + down * box["height"]

    def settle(self) -> None:
        """Wait until the page has been drawn twice, so that scrolling and observers have had their effect."""
        if not self._scripts:  # nothing moves, and nothing could tell when it has
            return
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))")

    def until(self, condition: str, seconds: float = 20) -> None:
        """Wait until a JavaScript expression is true.

        Raises:
            TimeoutError: it is not in that time.
        """
        deadline = time.monotonic() + seconds
        while not self.js(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{condition} did not become true")
            self.settle()

    def tap(self, x: float, y: float) -> None:
        """Touch a point with a finger, and lift it."""
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.settle()

    def point(self, x: float, y: float) -> None:
        """Move the mouse to a point."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        """Press and release the left button of the mouse at a point."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def key(self, name: str, shift: bool = False) -> None:
        """Press and release a key of `KEYS`."""
        text = {"Enter": "\r", " ": " "}.get(name)
        code = {" ": "Space"}.get(name, name)
        modifiers = 8 if shift else 0
        common = {"key": name, "code": code, "windowsVirtualKeyCode": KEYS[name], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def screenshot(self, out: Path, clip: tuple[float, float, float, float] | None = None, whole: bool = False) -> Path:
        """Write what the window shows, the whole page, or a part of it (left, top, width, height) as PNG."""
        self.settle()
        if whole:
            content = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = (0, 0, content["width"], content["height"])
        box = dict(zip(("x", "y", "width", "height"), clip, strict=True)) if clip else {}
        part = {"captureBeyondViewport": True, "clip": {**box, "scale": 1}} if clip else {}
        shot = self.call("Page.captureScreenshot", format="png", **part)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(base64.b64decode(shot["data"]))
        return out

    def downloads_to(self, folder: Path) -> None:
        """Let the page save files into a folder."""
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder), eventsEnabled=True)

    def problems(self) -> list[dict[str, Any]]:
        """Console messages, exceptions and log entries since the page was opened."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """The addresses asked for since the page was opened."""
        found = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in found]

    def close(self) -> None:
        """End the browser."""
        # Asked to, it ends its own processes too; stopped from outside, they would still write into the profile.
        self._session = None
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        os.close(self._send)
        os.close(self._receive)
