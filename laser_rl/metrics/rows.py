"""What a row of `metrics.jsonl` is, for all who read it: a file may be damaged or forged, and arithmetic with its rows must not fail."""

import math
from collections.abc import Mapping
from typing import get_args

from laser_rl.metrics.sink import Kind, Row

FIXED = ("kind", "step", "update", "time")  # what every row has
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no such numbers
MOST_MEMBERS = 1000  # tables of members by members are made of what is read
_KINDS = frozenset(get_args(Kind))
_WHOLE = frozenset({int, bool})
_MOST = 1 << 63  # a count beyond it is none, and may be too large for a float
_COUNTS = {"step": _MOST, "update": _MOST, "member": MOST_MEMBERS, "donor": MOST_MEMBERS}
_NUMBERS = {"episode": ("return",), "event": ("score", "donor_score")}  # what has to be one, if it is there


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
