"""What reports and tables read of a run directory besides its rows: settings as JSON, by their full names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPORT = "report.html"
_JSON_LIMIT_BYTES = 4 << 20


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file, empty if there is none: a report is worth having without its configuration."""
    try:
        if path.stat().st_size > _JSON_LIMIT_BYTES:
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by full name.

    >>> flat({"seed": 7, "loss": {"discount": 0.99}})
    {'seed': 7, 'loss.discount': 0.99}
    """
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict) and item:
            found |= flat(item, f"{prefix}{name}.")
        else:
            found[prefix + name] = item
    return found
