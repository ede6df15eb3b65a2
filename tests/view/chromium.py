"""Chromium, driven over a pipe by its own DevTools protocol: no driver and no library is needed, only Debian's `chromium`."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

PROGRAM = shutil.which("chromium")


def _high_pipe() -> tuple[int, int]:
    """A pipe whose numbers are not 3 and 4, which Chromium reads and writes."""
    low = os.pipe()
    read, write = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 20) for one in low)
    for one in low:
        os.close(one)
    return read, write


class Chromium:
    """One browser with one page. `errors` are those of the console and uncaught exceptions, `requests` all addresses."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 900) -> None:
        to_read, self._write = _high_pipe()
        self._read, to_write = _high_pipe()
        arguments = [
            str(PROGRAM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-dev-shm-usage", "--mute-audio", "--remote-debugging-pipe",
            f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", *arguments]
        self._process = subprocess.Popen(
            shell,
            pass_fds=[to_read, to_write],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def call(self, method: str, timeout_s: float = 30.0, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        ends = time.monotonic() + timeout_s
        while True:
            found = self._next(ends, method)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]

    def go(self, url: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, script: str, timeout_s: float = 30.0) -> Any:
        """Until an expression is true; its value."""
        ends, found = time.monotonic() + timeout_s, None
        while time.monotonic() < ends:
            try:
                found = self.run(script)
            except RuntimeError as error:  # the page is being loaded
                found = None
                last = error
            else:
                last = None
            if found:
                return found
            time.sleep(0.1)
        text = self.run("document.body.innerText.slice(0, 1500)")
        raise AssertionError(
            f"waited {timeout_s} s for {script!r}, got {found!r} {last!r}; the page says:\n{text}\n{self.errors}"
        )

    def key(self, key: str) -> None:
        """Press a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def prefers(self, scheme: str) -> None:
        """Light or dark, as a desktop would say."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path, *, whole: bool = False) -> Path:
        """A screenshot."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def close(self) -> None:
        """End it, and all that it started."""
        os.close(self._write)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(5)
        os.close(self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, ends: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                raise TimeoutError(f"waited for Chromium's answer to {what}")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError(f"Chromium ended before it answered {what}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._listen(message)
        return message

    def _listen(self, message: dict[str, Any]) -> None:
        method, given = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(given["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and given["type"] in {"error", "assert"}:
            self.errors.append(json.dumps(given["args"])[:500])
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith("data:"):
            self.requests.append(given["request"]["url"])
        elif method == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
