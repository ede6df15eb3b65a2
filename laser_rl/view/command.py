"""`laser dashboard`, and the same process when it is started by `laser train --dashboard`."""

import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from laser_rl.errors import ConfigError, MissingExtra


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


def dashboard_command(arguments: list[str]) -> int:
    """`laser dashboard`."""
    asked = tyro.cli(Dashboard, prog="laser dashboard", args=arguments)
    try:
        import starlette  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingExtra("the dashboard", "dashboard") from error
    from laser_rl.view.security import token_from  # noqa: PLC0415 - needs the extra
    from laser_rl.view.server import listening_socket, serve  # noqa: PLC0415

    if not asked.run_dirs:
        raise ConfigError("a dashboard of what? name one or more run directories: laser dashboard runs")
    missing = ", ".join(str(path) for path in asked.run_dirs if not path.is_dir())
    if missing:
        raise ConfigError(f"expected directories of runs, got {missing}, which is none; see 'laser dashboard --help'")
    token = token_from(asked.token_file)
    return serve(asked.run_dirs, listening_socket(asked.port, asked.host), token, show=asked.open)


def serve_for_parent(arguments: Sequence[str]) -> int:
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


if __name__ == "__main__":  # how training starts it: python -m laser_rl.view.command FD RUN_DIR
    sys.exit(serve_for_parent(sys.argv[1:]))
