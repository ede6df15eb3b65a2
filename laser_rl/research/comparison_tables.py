"""A comparison with the paper as JSON, as CSV, and as tables for a terminal."""

import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from laser_rl.metrics import display
from laser_rl.research.comparison import Comparison, GameLine, Medians
from laser_rl.research.paper import COLUMNS, atari_median

_NONE = "–"
_MILLION = 1_000_000
_WIDEST = 10_000  # where it is not for a terminal: no cell is broken


def as_json(found: Comparison) -> str:
    """Everything, with null instead of NaN."""
    columns = {
        one.name: {
            "agent": one.agent,
            "frames": one.frames,
            "sweep": one.sweep,
            "median_of_57": atari_median(one),
            "median_of_57_published": None if one.published_median is None else one.published_median / 100,
        }
        for one in COLUMNS
    }
    runs = [
        {**asdict(line), "paper": {name: cell._asdict() for name, cell in line.paper.items()}} for line in found.lines
    ]
    medians = [asdict(one) for one in found.medians]
    return json.dumps(
        _without_nan({"runs": runs, "medians": medians, "paper": columns, "notes": found.notes}), indent=2
    )


def as_csv(found: Comparison) -> str:
    """A line a run or sweep, without medians."""
    out = io.StringIO()
    names = [name for name in GameLine.__dataclass_fields__ if name != "paper"]
    cells = [f"{column.name}{ending}" for column in COLUMNS for ending in ("", "_human_normalised")]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, *cells])
    for line in found.lines:
        own = _without_nan([getattr(line, name) for name in names])
        writer.writerow([*own, *(number for column in COLUMNS for number in line.paper[column.name])])
    return out.getvalue()


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def show(found: Comparison) -> None:
    """Print two tables and the notes. In a pipe or a file a line may be as long as it is; a terminal breaks cells instead."""
    console = Console(width=None if sys.stdout.isatty() else _WIDEST, highlight=False)
    console.print(_lines_table(found.lines), "", _medians_table(found.medians), "")
    console.print(
        "Percentages are human-normalised: 0 % is random play, 100 % a person. Medians of yours are over the games that were run, not "
        "over all 57; the paper's beside them are over the same games.",
        *(f"Note: {note}" for note in found.notes),
        sep="\n",
        markup=False,
    )


def _lines_table(lines: Sequence[GameLine]) -> Table:
    """Two lines a run, so that the table fits a terminal: raw scores, and below them what they are in human-normalised terms."""
    table = _table("game\nrun", "frames", "last 100\nepisodes", "evalu-\nation")
    for line in lines:
        best = f", member {line.best_member} is the best of {line.members}" if line.kind == "sweep" else ""
        table.add_row(
            f"{line.game}\n  {line.run}{best}",
            f"{line.frames / _MILLION:.3g}M",
            _score(line.score, line.human_normalised),
            _score(line.evaluation, line.evaluation_human_normalised),
            *(_score(*line.paper[column.name]) for column in COLUMNS),
        )
    return table


def _medians_table(medians: Sequence[Medians]) -> Table:
    table = _table("median over", "yours")
    for one in medians:
        games = "the game" if len(one.games) == 1 else f"the {len(one.games)} games"
        paper = (_percent(one.paper[column.name]) for column in COLUMNS)
        table.add_row(f"{games} of your {one.kind}s", _percent(one.score), *paper)
    published = [column.published_median for column in COLUMNS]
    table.add_row("all 57, from the paper's table", _NONE, *(_percent(atari_median(column)) for column in COLUMNS))
    table.add_row("all 57, as published", _NONE, *(_NONE if one is None else _percent(one / 100) for one in published))
    return table


def _table(first: str, *own: str) -> Table:
    """Own columns, then the paper's. Where there is little room the first is folded; a number is never cut."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, overflow="fold", min_width=12)
    for heading in own:
        table.add_column(heading, justify="right", no_wrap=True)
    for column in COLUMNS:
        who = ("best", "of 9") if column.sweep else ("one", "agent")
        heading = "\n".join([*column.agent.split(), *who, f"{column.frames // _MILLION}M"])
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _score(score: float, normalised: float) -> str:
    return _NONE if math.isnan(score) else f"{display.short(score)}\n{100 * normalised:.0f} %"


def _percent(share: float) -> str:
    return _NONE if math.isnan(share) else f"{100 * share:.1f} %"
