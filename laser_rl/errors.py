"""Errors that a user can do something about; the command line prints the message, never a traceback, and exits with `exit_status`."""

import csv
import difflib
import errno
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

_SHORT = {"k": 1_000, "M": 1_000_000, "m": 1_000_000, "G": 1_000_000_000}
_MOST_REPEATED = 200  # letters of a value that is refused
# Names that stable-baselines3, CleanRL and RLlib have for a setting of ours, and what its value is here; without a setting of ours: why.
THEIRS: dict[str, tuple[str, str]] = {}
for _row in csv.DictReader((Path(__file__).parent / "data" / "names_elsewhere.csv").read_text("utf-8").splitlines()):
    THEIRS |= dict.fromkeys(_row["theirs"].split(), (_row["ours"], _row["note"]))


class UserError(Exception):
    """The message says what was expected, what came and what to do."""

    exit_status = 2


class ConfigError(UserError):
    """A setting, a file or a combination of them that cannot work."""


class EnvironmentRefused(UserError):
    """An environment does not keep Gymnasium's contract: names what was expected and what came."""


class MissingExtra(UserError):
    """A part that is not in the base install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}: pip install 'laser-rl[{extra}]'")


def require_modules(what: str, extra: str, *modules: str) -> None:
    """Raise `MissingExtra` before any work is done, if one of its modules is not installed."""
    if any(importlib.util.find_spec(name) is None for name in modules):
        raise MissingExtra(what, extra)


class EnvironmentFailed(UserError):
    """An environment kept failing; the message ends with the original traceback."""

    exit_status = 4


class EnvironmentEnded(EnvironmentFailed):
    """An environment asked the whole program to end: sys.exit, os._exit, or a KeyboardInterrupt of its own."""


class DamagedRun(UserError):
    """Nothing in a run directory verifies."""

    exit_status = 3


def is_full(error: BaseException) -> bool:
    """Whether something could not be written for lack of space: it may work later."""
    # The disk, the user's share of it, or one file is full.
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The known name that is nearest to a wrong one; if none is near, `otherwise`, or all of them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise or f"there are {', '.join(known)}"


def called_here(name: str) -> str:
    """What the name of a setting of stable-baselines3, CleanRL or RLlib is called here, and what its value means.

    >>> called_here("gamma")
    "gamma is 'loss.discount' here: the same number"
    """
    ours, note = THEIRS[name]
    return f"{name} is {ours!r} here: {note}" if ours else f"{name} has no counterpart here: {note}"


def written_out(word: str) -> str:
    """200k and 1.5M as whole numbers; every other word as it is.

    >>> written_out("1.5M"), written_out("10"), written_out("best")
    ('1500000', '10', 'best')
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMmG])", word.replace("_", ""))
    return word if match is None else str(round(float(match[1]) * _SHORT[match[2]]))


def shortened(value: object) -> str:
    """A value as a message repeats it."""
    text = repr(value)
    return text if len(text) <= _MOST_REPEATED else text[:_MOST_REPEATED] + "…"
