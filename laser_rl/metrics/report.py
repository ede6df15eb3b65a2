"""`report.html`: one file without scripts or links, with curves, the last numbers, the configuration and what to type next."""

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from laser_rl.envs.scores import RETURN_OF, SCORE_OF
from laser_rl.errors import ConfigError
from laser_rl.metrics import curves, display, page
from laser_rl.metrics.log import FILE, read
from laser_rl.metrics.sink import Row
from laser_rl.metrics.task_pictures import tasks_section

_CONFIG = "config.json"
_RETURNS = "Mean return of the last 100 episodes"
_PICTURES = {
    "Share of replayed steps that is trusted": ("acceptance",),
    "Entropy": ("entropy",),
    "Policy lag, updates": ("lag_updates",),
    "Clipped ratios, share": ("rho_clipped", "c_clipped"),
    "Steps per second": ("steps_per_second",),
}


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
    return page.write_page(run_dir / page.REPORT, run_dir.resolve().name, _parts(run_dir, rows))


def _parts(run_dir: Path, rows: Sequence[Row]) -> list[str]:
    returns = {curves.MEDIAN if curves.is_mixture(rows) else _RETURNS: ("return_mean",)}
    pictures = {label: curves.picture(rows, names, label) for label, names in (returns | _PICTURES).items()}
    return [
        page.section("At the end" if _ended(rows) else "At the last row", page.pairs(_last_numbers(rows))),
        page.section("Evaluation", page.pairs(_last_evaluation(rows))),
        tasks_section(rows),
        page.section("Curves", "".join(page.figure(label, png) for label, png in pictures.items())),
        page.section("What happened", page.pairs(_events(rows))),
        page.section("Next", f"<pre>{escape(_commands(run_dir))}</pre>"),
        page.section("Configuration", page.pairs(page.flat(page.read_json(run_dir / _CONFIG)))),
    ]


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
    several = display.is_mixture(found[-1])
    return {
        curves.MEDIAN.lower() if several and name == "mean" else name: page.text(value)
        for name, value in found[-1].items()
        if name not in {"kind", "time"} and not name.startswith((RETURN_OF, SCORE_OF))
    }


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
