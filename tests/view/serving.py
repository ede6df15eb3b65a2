"""A dashboard in a thread of this process, and requests to it."""

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from laser_rl.view.runs import Runs
from laser_rl.view.security import Access
from laser_rl.view.server import listening_socket, server_of

TOKEN = "a-token-of-tests-" + "0" * 30


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    port: int
    access: Access
    runs: Runs

    @property
    def cookie(self) -> dict[str, str]:
        return {"cookie": f"{self.access.cookie_name}={self.access.cookie}"}

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, *, known: bool = True
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request, with the cookie if we are known."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers=(self.cookie if known else {}) | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def never_reads(self, receive_bytes: int = 4096) -> socket.socket:
        """A page that asks for a lot and takes nothing."""
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        found.settimeout(20)
        found.connect(("127.0.0.1", self.port))
        lines = [
            "GET /static/vendor/uPlot.iife.min.js HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Cookie: {self.cookie['cookie']}",
        ]
        found.sendall("\r\n".join([*lines, "", ""]).encode())
        return found


@contextlib.contextmanager
def serving(places: Sequence[Path]) -> Iterator[Served]:
    """Until the block ends."""
    listening = listening_socket(0)
    access = Access(TOKEN, listening.getsockname()[1])
    runs = Runs(places, look_s=0.05)
    server = server_of(runs, access, listening)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until(lambda: server.started, "the server to start")
    try:
        yield Served(access.port, access, runs)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive(), "the server did not end within 20 s"


def until(true: object, what: str, timeout_s: float = 20.0) -> None:
    """Wait until something is true."""
    ends = time.monotonic() + timeout_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < ends, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
