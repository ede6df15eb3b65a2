"""What a row of `metrics.jsonl` is, for all who read it: a file may be damaged or forged, and arithmetic with its rows must not fail."""

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any, get_args

from laser_rl.metrics.sink import Kind, Row, Value

FIXED = ("kind", "step", "update", "time")  # what every row has
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no such numbers
MOST_MEMBERS = 1000  # tables of members by members are made of what is read
_KINDS = frozenset(get_args(Kind))
_WHOLE = frozenset({int, bool})
_MOST = 1 << 63  # a count beyond it is none, and may be too large for a float
_COUNTS = {"step": _MOST, "update": _MOST, "member": MOST_MEMBERS, "donor": MOST_MEMBERS}
_OF_EPISODES = ("return", "length", "episodes", "return_low", "return_high", "return_last")
_NUMBERS = {"episode": _OF_EPISODES, "event": ("score", "donor_score")}  # what has to be one, if it is there


def row_of(fields: object) -> Row | None:
    """The row that a line of JSON stands for, without values that no row has; None if a writer of ours cannot have written it.

    >>> row_of({"kind": "train", "step": 1, "update": 1, "kl": "inf", "tags": ["a"]})
    {'kind': 'train', 'step': 1, 'update': 1, 'kl': inf}
    >>> row_of({"kind": "train", "step": -1, "update": 1}) is row_of([1]) is None
    True
    """
    if not isinstance(fields, dict) or not isinstance(kind := fields.get("kind"), str) or kind not in _KINDS:
        return None
    row: Row = {
        name: NOT_FINITE[value] if of is str and value in NOT_FINITE else value
        for name, value in fields.items()
        if (of := value.__class__) is float or of is str or (of in _WHOLE and -_MOST < value < _MOST)
    }
    return row if _is_row(row, kind) else None


def _is_row(row: Mapping[str, object], kind: str) -> bool:
    for name, most in _COUNTS.items():
        value = row.get(name, None if name in FIXED else 0)
        if not isinstance(value, int) or not 0 <= value < most:
            return False
    numbers = ("time", *_NUMBERS.get(kind, ()))
    return all(isinstance(row.get(name, 0.0), int | float) for name in numbers) and isinstance(row.get("task", ""), str)


def rows_in(data: bytes) -> list[Row]:
    r"""The rows of whole lines; what a killed writer left of one is passed over.

    >>> rows_in(b'{"kind": "train", "step": 1, "update": 1, "kl": "inf"}\n{"kind": "tr\n[]\n')
    [{'kind': 'train', 'step': 1, 'update': 1, 'kl': inf}]
    """
    return [row for fields in _objects(data.splitlines()) if (row := row_of(fields)) is not None]


def joined(old: Mapping[str, Value], new: Mapping[str, Value]) -> Row:
    """Two rows of episodes as one: how many they are, mean, lowest, highest and last return, mean length.

    >>> joined({"return": 1.0, "length": 4, "slot": 3}, {"return": 2.0, "length": 5, "slot": 0})
    {'return': 1.5, 'length': 4.5, 'episodes': 2, 'return_low': 1.0, 'return_high': 2.0, 'return_last': 2.0}
    """
    if "return" not in old or "return" not in new:  # forged: nothing of ours writes such a row
        return dict(new)
    counts = episodes_in(old), episodes_in(new)
    found: Row = {**old, **new}
    found.pop("slot", None)
    for name in ("return", "length"):
        if name in old and name in new:
            found[name] = (counts[0] * float(old[name]) + counts[1] * float(new[name])) / sum(counts)
    found["episodes"] = sum(counts)
    found["return_low"] = min(one.get("return_low", one["return"]) for one in (old, new))
    found["return_high"] = max(one.get("return_high", one["return"]) for one in (old, new))
    found["return_last"] = new.get("return_last", new["return"])
    return found


def episodes_in(row: Mapping[str, Value]) -> int:
    """How many episodes a row of kind `episode` stands for.

    >>> episodes_in({"return": 1.0}), episodes_in({"return": 1.5, "episodes": 2})
    (1, 2)
    """
    count = row.get("episodes", 1)
    return max(1, count) if isinstance(count, int) else 1


def _objects(lines: list[bytes]) -> list[dict[str, Any]]:
    """What is a JSON object; all lines at once, which is twice as fast, unless one of them is broken."""
    if all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        with contextlib.suppress(ValueError, RecursionError):
            rows = json.loads(b"[" + b",".join(lines) + b"]")
            if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
                return list(rows)
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                found.append(row)
    return found
