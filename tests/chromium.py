"""Drives headless Chromium over its own protocol: go somewhere, evaluate, press, look, list every request."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
]
PATIENCE_S = 120  # a loaded machine is slow; nothing here is a claim about time


class Page:
    """One tab. `requests` holds the address of everything that it asked for and was not refused by the page's
    own policy."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self._asked: dict[str, str] = {}
        self.refused: list[str] = []
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    @property
    def requests(self) -> list[str]:
        return [address for address in self._asked.values() if not address.startswith(("data:", "blob:"))]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE_S))
            self._note(message)
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self._asked[params["requestId"]] = params["request"]["url"]
        elif message.get("method") == "Network.loadingFailed" and params.get("blockedReason") == "csp":
            self.refused.append(self._asked.pop(params["requestId"], "unknown"))

    def evaluate(self, script: str) -> Any:
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        result = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def go(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def until(self, condition: str) -> Any:
        """Waits until the expression holds, and returns it."""
        end = time.monotonic() + PATIENCE_S
        while not (value := self.evaluate(condition)):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.2)
        return value

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            pressed = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
            self.call("Input.dispatchKeyEvent", type=kind, **pressed)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def look(self, to: Path, dark: bool = False) -> None:
        """A screenshot as PNG."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        to.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def page(width: int = 1280, height: int = 800) -> Iterator[Page]:
    """A tab of a browser with a profile of its own; both are gone afterwards."""
    assert CHROMIUM
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        browser = subprocess.Popen([CHROMIUM, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(_tab(Path(profile)), max_size=None) as socket:
                opened = Page(socket)
                size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
                opened.call("Emulation.setDeviceMetricsOverride", **size)
                yield opened
        finally:
            browser.terminate()
            browser.wait()


def _tab(profile: Path) -> str:
    file = profile / "DevToolsActivePort"
    end = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < end, "Chromium did not start"
        if file.exists() and (lines := file.read_text().splitlines()):
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.1)
