"""`report.html`: one file without scripts or links, with curves, the last numbers, the configuration and what to type next."""

import base64
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from laser_rl.errors import ConfigError
from laser_rl.metrics import curves, display
from laser_rl.metrics.log import FILE, read
from laser_rl.metrics.sink import Row

_CONFIG, _REPORT = "config.json", "report.html"
_CONFIG_LIMIT_BYTES = 4 << 20
_PICTURES = {
    "Mean return of the last 100 episodes": ("return_mean",),
    "Share of replayed steps that is trusted": ("acceptance",),
    "Entropy": ("entropy",),
    "Policy lag, updates": ("lag_updates",),
    "Clipped ratios, share": ("rho_clipped", "c_clipped"),
    "Steps per second": ("steps_per_second",),
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
figure { display: inline-block; width: 31rem; max-width: 100%; margin: 0 0 1rem 0; } img { max-width: 100%; }
table { border-collapse: collapse; } td { border-bottom: 1px solid #ddd; padding: .15rem 1rem .15rem 0; }
td:last-child { text-align: right; font-variant-numeric: tabular-nums; } pre { background: #f4f4f4; padding: .8rem; overflow-x: auto; }
"""


def report(run_dir: str | Path) -> Path:
    """Write `report.html` into a run directory, also while the run goes on.

    >>> import tempfile
    >>> from laser_rl.metrics.log import MetricsLog
    >>> run_dir = tempfile.mkdtemp()
    >>> with MetricsLog(run_dir) as log:
    ...     log.write("train", 640, 4, {"entropy": 0.6})
    >>> "<h1>" in report(run_dir).read_text()
    True
    """
    run_dir = Path(run_dir)
    rows = read(run_dir)
    if not rows:
        raise ConfigError(f"expected {run_dir / FILE} with the numbers of a run, got none; is this a run directory?")
    path = run_dir / _REPORT
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(_page(run_dir, rows), encoding="utf-8")
    temporary.replace(path)  # a browser that reloads never sees half of it
    return path


def _page(run_dir: Path, rows: Sequence[Row]) -> str:
    config = _flat(_config(run_dir / _CONFIG))
    name = escape(run_dir.resolve().name)
    body = [
        f"<h1>{name}</h1>",
        _section("At the end" if _ended(rows) else "At the last row", _table(_last_numbers(rows))),
        _section("Evaluation", _table(_last_evaluation(rows))),
        _section("Curves", "".join(_figure(rows, label, names) for label, names in _PICTURES.items())),
        _section("What happened", _table(_events(rows))),
        _section("Next", f"<pre>{escape(_commands(run_dir))}</pre>"),
        _section("Configuration", _table(config)),
    ]
    head = f'<meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _last_numbers(rows: Sequence[Row]) -> dict[str, str]:
    """The counts of the last row, and the newest value of everything that training reported."""
    values: Row = {}
    for row in rows:
        if row["kind"] == "train":
            values |= row
    last = rows[-1]
    seconds = float(last["time"]) - float(rows[0]["time"]) if "time" in last and "time" in rows[0] else 0.0
    counts = {
        "steps": f"{last['step']:,}",
        "updates": f"{last['update']:,}",
        "from first to last row": display.duration(seconds),
    }
    return counts | display.texts(values)


def _last_evaluation(rows: Sequence[Row]) -> dict[str, str]:
    found = [row for row in rows if row["kind"] == "evaluation"]
    if not found:
        return {}
    return {name: _text(value) for name, value in found[-1].items() if name not in {"kind", "time"}}


def _events(rows: Sequence[Row]) -> dict[str, str]:
    """Events other than checkpoints, which are many."""
    found = [row for row in rows if row["kind"] == "event" and row.get("event") != "checkpoint"]
    return {
        f"{number}. {row.get('event', 'event')}": f"step {row['step']:,}, update {row['update']:,}"
        for number, row in enumerate(found[-20:], start=1)
    }


def _ended(rows: Sequence[Row]) -> bool:
    return rows[-1]["kind"] == "event" and rows[-1].get("event") in {"finished", "stopped"}


def _commands(run_dir: Path) -> str:
    folder = shlex.quote(str(run_dir))
    return f"laser evaluate {folder} --episodes 100\nlaser resume {folder}\ntensorboard --logdir {folder}"


def _figure(rows: Sequence[Row], label: str, names: Sequence[str]) -> str:
    data = curves.picture(rows, names, label)
    if data is None:
        return ""
    return f'<figure><img alt="{escape(label)}" src="data:image/png;base64,{base64.b64encode(data).decode()}"></figure>'


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def _table(cells: Mapping[str, str]) -> str:
    lines = [f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in cells.items()]
    return "<table>\n" + "\n".join(lines) + "\n</table>" if lines else ""


def _config(path: Path) -> dict[str, Any]:
    """The run's configuration; a report is worth having without it."""
    try:
        if path.stat().st_size > _CONFIG_LIMIT_BYTES:
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, dict) and item:
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = _text(item)
    return flat


def _text(value: object) -> str:
    if isinstance(value, str | bool) or value is None:
        return str(value)
    return f"{value:,.6g}" if isinstance(value, float) else json.dumps(value)
