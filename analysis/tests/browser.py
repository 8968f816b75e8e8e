"""A real browser for tests: headless Chromium, over a pipe (the DevTools protocol), with nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page at a time. Use it in `with`."""

    def __enter__(self) -> Browser:
        self.home = tempfile.TemporaryDirectory(prefix="browser-")
        to_read, self.to = os.pipe()
        self.come, from_write = os.pipe()
        command = [program(), "--headless=new", "--remote-debugging-pipe"]
        command += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"]
        command += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={self.home.name}", "about:blank"]

        def place() -> None:
            # The protocol's descriptors are 3 and 4 of the browser. Of our four pipe ends the first is below the last.
            os.dup2(to_read, 3)
            os.dup2(from_write, 4)

        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, pass_fds=(3, 4), preexec_fn=place, stdin=quiet, stdout=quiet, stderr=quiet)
        os.close(to_read)
        os.close(from_write)
        self.rest, self.number, self.session, self.complaints = b"", 0, None, []
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
        os.close(self.to)
        os.close(self.come)
        # Its children may still write for a moment.
        for _ in range(100):
            try:
                return self.home.cleanup()
            except OSError:
                time.sleep(0.1)
        self.home.cleanup()

    def call(self, method: str, **params: object) -> dict:
        """One command and its answer; what the page says meanwhile is kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params} | ({"sessionId": self.session} if self.session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self) -> dict:
        while b"\0" not in self.rest:
            part = os.read(self.come, 1 << 20)
            assert part, "the browser has ended"
            self.rest += part
        one, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(one)
        name, params = message.get("method"), message.get("params", {})
        if name in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params)[:400])
        elif name == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:", "about:")):
            self.complaints.append(f"asks for {params['request']['url']}")
        elif name == "Page.loadEventFired":
            self.loaded = True
        return message

    def open(self, page: Path, width: int, height: int, scheme: str) -> None:
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if mobile else 1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.loaded = False
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.loaded:
            self._next()

    def evaluate(self, script: str) -> object:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, top: float = 0, height: float | None = None) -> None:
        """The page from `top`, at most so high; beyond what a window shows."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": min(height or 1e9, size["height"] - top), "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self, path: Path) -> bytes:
        data = base64.b64decode(self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"])
        path.write_bytes(data)
        return data
