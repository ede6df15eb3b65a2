"""The command `laser`.

A command is imported only when it is called, so that `laser --help` does not wait for torch.
"""

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from laser_rl import __version__

USAGE_ERROR = 2


class Command(NamedTuple):
    """Where a command's function lives, and what it does in one line."""

    module: str
    function: str
    summary: str


COMMANDS = {
    "theory": Command("laser_rl.cli.theory", "show", "the paper's five propositions, computed on a random process"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 2 if the user's input was refused.

    >>> main(["--version"]) == 0
    laser ...
    True
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(_usage())
        return 0
    if arguments[0] == "--version":
        print(f"laser {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        return _refuse(_unknown(name))
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    import tyro  # noqa: PLC0415 - see the module's docstring

    from laser_rl.ops.checks import InputError  # noqa: PLC0415

    command = COMMANDS[name]
    function = getattr(importlib.import_module(command.module), command.function)
    try:
        tyro.cli(function, prog=f"laser {name}", args=arguments)
    except InputError as error:
        return _refuse(str(error))
    return 0


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["usage: laser COMMAND [OPTIONS]", "", *lines, "", "laser COMMAND --help explains one; laser --version"]
    )


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean 'laser {close[0]}'?" if close else "'laser --help' lists the commands"
    return f"there is no command {name!r}; {hint}"


def _refuse(message: str) -> int:
    print(f"laser: {message}", file=sys.stderr)
    return USAGE_ERROR
