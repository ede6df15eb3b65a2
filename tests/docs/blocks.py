"""The code of a page, played in its order in one folder: files are written, commands are run, Python is executed.

A block with a title is a file. A block of commands with the title UNTIL is a server: it is started, waited for and ended.
"""

import contextlib
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from laser_rl.cli import main

UNTIL = "until Ctrl-C"
# `make demo` runs with the README; the environment that the second one enters is the one that runs this.
ELSEWHERE = {"make demo", "source .venv/bin/activate"}
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A piece of code on a page."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """In their order."""
    return [Block(*match.groups(default="")) for match in BLOCK.finditer(page.read_text())]


def commands(block: Block) -> list[str]:
    """The lines of a block of commands, without their comments."""
    lines = (line.partition(" #")[0].strip() for line in block.text.splitlines())
    return [line for line in lines if line and line not in ELSEWHERE]


def tenth(command: str) -> str:
    """With a tenth of the steps: whether a command works does not depend on how long it takes."""
    return re.sub(r"(--steps )(\d+)k", lambda match: f"{match[1]}{100 * int(match[2])}", command)


def play_here(page: Path) -> None:
    """All of a page in this process and the current folder, with fewer steps: seconds instead of a torch import for each command."""
    names: dict[str, object] = {"__name__": "a page"}
    with own_modules():
        for block in blocks(page):
            if block.language == "bash" and block.title != UNTIL:
                for command in map(tenth, commands(block)):
                    program, *arguments = shlex.split(command)
                    assert program == "laser", command
                    assert main(arguments) == 0, command
            elif block.title and block.language != "bash":
                Path(block.title).write_text(block.text)
            elif block.language == "python":
                exec(compile(block.text, str(page), "exec"), names)  # noqa: S102


def play_as_user(page: Path, folder: Path, environment: dict[str, str]) -> None:
    """All of a page as it stands: commands by bash, Python as one program at the end of the page."""
    program = []
    for block in blocks(page):
        if block.title == UNTIL:
            serve(commands(block)[0], folder, environment)
        elif block.language == "bash":
            run("\n".join(["set -e", *commands(block)]), folder, environment)
        elif block.title:
            (folder / block.title).write_text(block.text)
        elif block.language == "python":
            program.append(block.text)
    if program:
        (folder / "the_page.py").write_text("\n".join(program))
        run(f"{shlex.quote(sys.executable)} the_page.py", folder, environment)


def run(script: str, folder: Path, environment: dict[str, str]) -> None:
    """One script of bash, which has to succeed."""
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"


def serve(command: str, folder: Path, environment: dict[str, str]) -> None:
    """A server: it prints its link, and ends when it is asked to."""
    process = subprocess.Popen(
        shlex.split(command), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    late = threading.Timer(60, process.kill)
    late.start()
    try:
        assert any("http://127.0.0.1:" in line for line in process.stdout), f"{command}: no link within 60 s"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in {0, 130}, command
    finally:
        late.cancel()
        process.kill()
        process.wait(10)
        process.stdout.close()


@contextlib.contextmanager
def own_modules() -> Iterator[None]:
    """Modules that a page writes are forgotten at its end."""
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = path
        here = str(Path.cwd())
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(here):
                del sys.modules[name]
