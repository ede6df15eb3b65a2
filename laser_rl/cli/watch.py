"""`--dashboard` of train and sweep: a process of its own beside training, whose end does not matter to it."""

import contextlib
import importlib.util
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from laser_rl.errors import MissingExtra

_END_S = 5.0


@contextlib.contextmanager
def dashboard_of(path: Path, *, asked: bool) -> Iterator[None]:
    """Show a run directory for as long as the block lasts, if it was asked for, and print the link.

    The socket is made here, so that the link is known at once, and training does not wait for the other process to begin.
    """
    if not asked:
        yield
        return
    require_dashboard()
    token = secrets.token_urlsafe(32)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, number = listening.getsockname()[1], listening.fileno()
        command = [sys.executable, "-m", "laser_rl.view.command", str(number), str(path.resolve())]
        process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[number],
            start_new_session=True,  # Ctrl-C is for training
        )
    stdin = process.stdin
    assert stdin is not None  # noqa: S101
    with contextlib.suppress(OSError):  # it is dead already: then there is no page, and training goes on
        stdin.write(f"{token}\n".encode())
        stdin.flush()
    print(f"dashboard: http://127.0.0.1:{port}/?token={token}", flush=True)
    try:
        yield
    finally:
        process.kill()  # it has nothing to save
        with contextlib.suppress(OSError):
            stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even a process that cannot die holds training up
            process.wait(_END_S)


def require_dashboard() -> None:
    """Refuse before anything is trained, if the libraries are not there."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise MissingExtra("--dashboard", "dashboard")
