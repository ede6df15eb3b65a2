"""`laser dashboard`, and `--dashboard` of train and sweep: a process of its own beside training, whose end does not matter to it."""

import contextlib
import importlib.util
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from laser_rl.errors import ConfigError, MissingExtra

_END_S = 5.0


@dataclass(frozen=True)
class Dashboard:
    """Show runs and sweeps in a browser, also while they go on. Reads only; listens on 127.0.0.1 only, and needs the token in its link."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps, or folders with such directories."""
    port: int = 0
    """0: any that is free."""
    host: str = "127.0.0.1"
    """Nothing else is accepted; from another machine use ssh -L."""
    token_file: Path | None = None
    """Keep the token in this file, mode 600: with the same port, pages that are open go on after a restart."""
    open: bool = True
    """Open the page in a browser, where there is a desktop."""

    def __call__(self) -> int:
        """Serve until Ctrl-C."""
        require_dashboard("the dashboard")
        from laser_rl.view.security import token_from  # noqa: PLC0415 - needs the extra
        from laser_rl.view.server import listening_socket, serve  # noqa: PLC0415

        missing = ", ".join(str(path) for path in self.run_dirs if not path.is_dir())
        if missing:
            raise ConfigError(
                f"expected directories of runs, got {missing}, which is none; see 'laser dashboard --help'"
            )
        token = token_from(self.token_file)
        return serve(self.run_dirs, listening_socket(self.port, self.host), token, show=self.open)


def require_dashboard(what: str = "--dashboard") -> None:
    """Refuse before anything begins, if the libraries are not there."""
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise MissingExtra(what, "dashboard")


@contextlib.contextmanager
def dashboard_of(path: Path) -> Iterator[None]:
    """Show a run directory for as long as the block lasts, and print the link.

    The socket is made here, so that the link is known at once, and training does not wait for the other process to begin.
    """
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


def _serve_for_parent(arguments: Sequence[str]) -> int:
    """The process that training starts: `FD RUN_DIR`, the token comes by standard input, and its end is ours."""
    from laser_rl.view.server import serve  # noqa: PLC0415 - needs the extra

    number, place = arguments
    logging.basicConfig(level=logging.CRITICAL)  # the terminal belongs to training
    token = sys.stdin.readline().strip()
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    return serve([Path(place)], socket.socket(fileno=int(number)), token, quiet=True)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)  # nothing to save: we only read


if __name__ == "__main__":
    sys.exit(_serve_for_parent(sys.argv[1:]))
