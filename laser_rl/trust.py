"""Refuse to import code that a file names unless the user allows it; the paper's trust region is `ops/trust_region`.

An environment called `module:callable`, Gymnasium's `module:Name-v0` and a `loss.trust` or `optimiser.schedule` of `module:function` are
names of code: to use one is to run it. Readers of files call `note`, whatever imports calls `require`. Names are followed by their value,
so where one came from survives every copy, override and JSON in between. A process that a run starts notes nothing: it inherits the run's
word.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from laser_rl.errors import ConfigError

FLAG = "--trust-code"
HERE = "this_process:"  # before the name of a function that a program has passed as an object: no file can lead to its code
PROMISE = (
    "No command and no method imports or calls code that a file names (`module:callable`) unless you pass that name yourself or say "
    "`--trust-code`, in Python `trust_code=True`."
)
"""README, SECURITY.md and every model card say this, word for word; a test compares them."""
_CODE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w./-]*")  # not host:8080, not https://


class Trust:
    """What one command, or one agent, has read from files."""

    def __init__(self, *, code: bool = False) -> None:
        self.code = code  # the user has said that names of code in files may be used
        self.file_of: dict[str, str] = {}  # of each text that was read
        self.passed: set[str] = set()  # names that the user has passed

    @contextmanager
    def applied(self) -> Iterator[None]:
        """`note`, `pass_in` and `require` go by this one meanwhile."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)


class Untrusted(ConfigError):
    """A file names code, and the user has not said that it may be used."""

    def __init__(self, file: str, name: str) -> None:
        super().__init__(
            f"{file} names the code {name!r}, which is imported only if you say so; read it, then use {FLAG} (in Python "
            "trust_code=True), or pass the environment yourself (--env, in Python env=)"
        )


_current: ContextVar[Trust] = ContextVar("trust", default=Trust())  # noqa: B039 - outside of commands and agents all share one


def note(values: object, file: str | Path) -> None:
    """Every text in these values came from this file."""
    for text in _texts(values):
        for part in text.split(","):
            _current.get().file_of.setdefault(part.strip(), str(file))


def pass_in(*names: str) -> None:
    """The user has passed these names: it no longer matters which file holds them too."""
    _current.get().passed.update(part.strip() for name in names for part in name.split(","))


def require(*names: str) -> None:
    """`Untrusted` if only a file gave one of these names of code; whatever imports a name calls this first."""
    trust = _current.get()
    for name in names:
        if not trust.code and name in trust.file_of and name not in trust.passed:
            raise Untrusted(trust.file_of[name], name)


def code_in(environment: str, options: Mapping[str, Any], *functions: str) -> list[str]:
    """The names of code among an environment's id (or ids, with commas), its options and settings that may name functions."""
    ids = [part.strip() for part in environment.split(",")]
    found = [name for name in ids if ":" in name and not name.startswith("suite:")]
    # A level of Lab's is a script: a path can lead to any.
    found += [name for name in ids if name.startswith("dmlab/") and name.count("/") > 1]
    found += [text for text in _texts(options) if _CODE.fullmatch(text)]
    return found + [name for name in functions if ":" in name and not name.startswith(HERE)]


def _texts(values: object) -> Iterator[str]:
    """All texts in plain values, also names."""
    waiting = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += [*value, *value.values()]
        elif isinstance(value, Iterable) and not isinstance(value, bytes):
            waiting += list(value)
