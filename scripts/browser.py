"""Opens a page in headless Chromium by its remote debugging protocol
(https://chromedevtools.github.io/devtools-protocol), over Tornado's WebSocket.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

# Seconds until a page is drawn, on a machine that other work keeps busy.
_PATIENCE = 60.0


class Page:
    """An open page.

    errors: messages of its console and its uncaught exceptions.
    """

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.errors: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result. Errors among the events before it are recorded."""
        self._number += 1
        await self._socket.write_message(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            text = await asyncio.wait_for(self._socket.read_message(), _PATIENCE)
            assert text is not None, "Chromium closed the connection"
            message = json.loads(text)
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return dict(message["result"])
            found = message.get("params", {})
            level = {
                "Runtime.exceptionThrown": "error",
                "Runtime.consoleAPICalled": found.get("type"),
                "Log.entryAdded": found.get("entry", {}).get("level"),
            }
            if level.get(message.get("method")) == "error":
                self.errors.append(json.dumps(found)[:200])

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression. Wait for it if it is a promise."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def open(self, path: Path, *, width: int, until: str) -> None:
        """Open a file in a window of a width in pixels and wait until an expression is true."""
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        await self.call("Page.navigate", url=path.absolute().as_uri())
        for _ in range(int(_PATIENCE / 0.2)):
            if await self.value(until):
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"{path} was not drawn in {_PATIENCE:.0f} s: {self.errors}")

    async def picture(self, path: Path, *, width: int, height: int) -> None:
        """Save the upper left part of the page as PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = await self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


def chromium() -> str:
    """Return the path of Chromium. An assertion fails without it, because a skipped test would hide that."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "there is no chromium; scripts/setup_env.sh installs it (apt-get install chromium)"
    return found


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """Yield a page of a new Chromium without network."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            chromium(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--proxy-server=127.0.0.1:9",
            "--no-first-run",
        ]
        started = subprocess.Popen(
            [*command, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(folder, "DevToolsActivePort"))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                url = next(tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page")
            socket = await websocket_connect(url, max_message_size=1 << 28)
            yield Page(socket)
            socket.close()
        finally:
            started.terminate()
            started.wait()


async def _port(path: Path) -> str:
    for _ in range(int(_PATIENCE / 0.1)):
        if path.exists() and len(lines := path.read_text(encoding="utf-8").splitlines()) == 2:
            return lines[0]
        await asyncio.sleep(0.1)
    raise AssertionError(f"chromium did not start in {_PATIENCE:.0f} s")
