"""A real headless Chromium, driven over its debugging pipe: what a reader of a page sees and does."""

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PATIENCE_S = 60.0


class Browser:
    """One page in one window."""

    def __init__(self, to: int, back: int, downloads: Path) -> None:
        self._to, self._back, self._buffer, self._count = to, back, b"", 0
        self._session = ""
        self.downloads = downloads
        self.problems: list[str] = []  # Console errors, exceptions, and what the browser itself complains about
        self.requests: list[str] = []  # Addresses other than data and blobs that were asked for
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self._send(f"{domain}.enable")
        self._send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))

    def open(self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a page in a window of this size and wait until its figures are drawn."""
        self.problems.clear()
        self.requests.clear()
        self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._send("Page.navigate", url=page.as_uri())
        self.wait(lambda: self.run("document.body && document.body.dataset.drawn") == "all", "the figures are drawn")

    def run(self, code: str) -> Any:
        """The value of JavaScript in the page."""
        done = self._send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, until: Callable[[], Any], what: str) -> None:
        """Until something is so."""
        last = time.monotonic() + _PATIENCE_S
        while not until():
            assert time.monotonic() < last, f"not within {_PATIENCE_S:g} s: {what}"
            time.sleep(0.1)

    def move(self, x: float, y: float) -> None:
        """Put the mouse there."""
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def wheel(self, x: float, y: float, delta: float, *, ctrl: bool = False) -> None:
        """Turn the wheel there."""
        self._send(
            "Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta, modifiers=2 if ctrl else 0
        )

    def key(self, name: str) -> None:
        """Press and release a key such as Tab or Enter."""
        code = {"Tab": 9, "Enter": 13}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        self._send("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, windowsVirtualKeyCode=code, **text)
        self._send("Input.dispatchKeyEvent", type="keyUp", key=name, code=name, windowsVirtualKeyCode=code)

    def downloaded(self, name: str) -> Path:
        """A file that the page saves."""
        path = self.downloads / name
        self.wait(lambda: path.is_file() and path.stat().st_size > 0, f"{name} is saved")
        return path

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """What is seen, or the whole page, as a PNG."""
        shown = self._send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shown["data"]))

    def printed(self, path: Path) -> None:
        """The page as a printer gets it."""
        path.write_bytes(base64.b64decode(self._send("Page.printToPDF", printBackground=False)["data"]))

    def _send(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._heard(answer)

    def _receive(self) -> dict[str, Any]:
        last = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._back], [], [], max(0.0, last - time.monotonic()))
            assert ready, "chromium does not answer"
            more = os.read(self._back, 1 << 20)
            assert more, "chromium has ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _heard(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.problems.append(str([each.get("value", each.get("description")) for each in told["args"]]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(("data:", "blob:")):
            self.requests.append(told["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Chromium with its profile and its downloads in this folder; it ends with the block."""
    downloads = folder / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    (hear, to), (back, say) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]

    def connect() -> None:
        """Chromium reads its commands from descriptor 3 and answers on 4."""
        ends = os.dup(hear), os.dup(say)
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    process = subprocess.Popen(
        ["chromium", *options, f"--user-data-dir={folder / 'profile'}"],
        preexec_fn=connect,
        close_fds=False,  # none but these two is inherited anyway
        stderr=subprocess.DEVNULL,
    )
    os.close(hear)
    os.close(say)
    try:
        yield Browser(to, back, downloads)
    finally:
        os.close(to)  # it ends when nobody can tell it anything any more
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(back)
