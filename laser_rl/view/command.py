"""`laser dashboard`, and `--dashboard` of train and sweep: a process of its own beside training, whose end does not matter to it."""

import contextlib
import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from laser_rl.errors import ConfigError, require_modules
from laser_rl.training.process_handle import start_child

_END_S = 5.0


@dataclass(frozen=True)
class Dashboard:
    """Show runs and sweeps in a browser, also while they go on. Reads only; listens on 127.0.0.1 only, and needs the token in its link."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs or sweeps, or folders with such directories."""
    port: int = 0
    """0: any that is free."""

    def __call__(self) -> int:
        require_dashboard("the dashboard")
        from laser_rl.view.security import Access, chosen_token  # noqa: PLC0415 - needs the extra
        from laser_rl.view.server import listening_socket, serve  # noqa: PLC0415

        missing = ", ".join(str(path) for path in self.run_dirs if not path.is_dir())
        if missing:
            raise ConfigError(f"expected directories of runs, got {missing}, no run; see 'laser dashboard --help'")
        token, listening = chosen_token(), listening_socket(self.port)
        access = Access(token, listening.getsockname()[1])
        print(f"dashboard: {access.link}", flush=True)
        print("the link holds a token: who has it can see these runs; Ctrl-C ends", flush=True)
        return serve(self.run_dirs, listening, access)


def require_dashboard(what: str = "--dashboard") -> None:
    require_modules(what, "dashboard", "starlette", "uvicorn")


@contextlib.contextmanager
def dashboard_of(path: Path) -> Iterator[Callable[[], None]]:
    """Show a run until the block ends; what it yields waits for Ctrl-C, if there is a terminal to press it on: no script hangs.

    The socket is made here, so that the link is known at once, and training does not wait for the other process to begin.
    """
    token = secrets.token_urlsafe(32)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, number = listening.getsockname()[1], listening.fileno()
        start = {"run_dir": str(path.resolve()), "socket": number, "token": token}
        none = subprocess.DEVNULL  # the terminal belongs to training
        process = start_child("view.command", start, files=[number], stdin=none, stdout=none, stderr=none)
    link = f"http://127.0.0.1:{port}/?token={token}"
    print(f"dashboard: {link}", flush=True)

    def stay_up() -> None:
        if os.isatty(0) and os.isatty(1):
            print(f"dashboard stays up until Ctrl-C: {link}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                process.wait()

    try:
        yield stay_up
    finally:
        process.kill()  # it has nothing to save
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even a process that cannot die holds training up
            process.wait(_END_S)


def main(start: Mapping[str, Any]) -> int:
    from laser_rl.view.security import Access  # noqa: PLC0415 - needs the extra
    from laser_rl.view.server import serve  # noqa: PLC0415

    listening = socket.socket(fileno=start["socket"])
    return serve([Path(start["run_dir"])], listening, Access(start["token"], listening.getsockname()[1]))
