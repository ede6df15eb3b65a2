"""The progress of a run or sweep in the terminal: a live table, or a plain line every few seconds where there is no terminal."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console as Terminal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from laser_rl.metrics import display
from laser_rl.metrics.rows import Kind, Value, mean

_TOTAL = 36  # columns of a label with its number
_REFRESH_SECONDS, _LINE_SECONDS = 0.25, 5.0  # between two drawings of the table, and two plain lines, at least


@dataclass
class _Seen:
    steps: int = 0
    updates: int = 0
    values: dict[str, Value] = field(default_factory=dict)


class Console:
    """The sink that people watch. Says `title` at once, before there is any number.

    Of one agent all its numbers are shown, of several (with `settings` each, as in `sweep.json`) a line each; with `pbt` settings move, and
    the newest are shown instead of the first.
    """

    def __init__(
        self,
        title: str,
        total_steps: int,
        settings: Sequence[Mapping[str, Any]] = ({},),
        *,
        pbt: bool = False,
        terminal: Terminal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._settings, self._pbt = title, total_steps, settings, pbt
        self._members = [_Seen() for _ in settings]
        self._sweep: dict[str, Value] = {}
        self._terminal, self._clock, self._start = terminal, clock, clock()
        self._shown: float | None = None  # when numbers were last shown
        self._pending = self._closed = self._gone = False
        self._draw: Callable[[Table], object] | None = None  # replaces the table that is shown; None: lines
        self._stop: Callable[[], object] = lambda: None
        if self._terminal.is_jupyter:  # rich's own table in a cell would need a package of widgets
            from IPython.display import display as show  # type: ignore[import-not-found]  # noqa: PLC0415 - a notebook has it

            self._draw = show(self._table(), display_id=True).update
        elif self._terminal.is_terminal and not self._terminal.is_dumb_terminal:
            # Refreshed by us, not by a thread of its own: a thread would be copied half-dead into forked workers.
            live = Live(self._table(), console=self._terminal, auto_refresh=False)
            self._draw, self._stop = partial(live.update, refresh=True), live.stop
            live.start(refresh=True)
        else:
            self._say(title)

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        single, event = len(self._members) == 1, values.get("event")
        # None: a row of the sweep itself.
        seen = self._members[int(values.get("member", 0))] if single or "member" in values else None
        if seen is not None:
            resumed = event == "resumed"
            seen.steps = step if resumed else max(step, seen.steps)
            seen.updates = update if resumed else max(update, seen.updates)
        if kind in {"event", "evaluation"}:
            if event != "resumed" or "member" not in values:  # the sweep's own row says it once for all
                who = f"member {values['member']}: " if "member" in values else ""
                rest = display.listed({name: one for name, one in values.items() if name not in {"event", "member"}})
                self._say(f"{who}{event or kind} at step {step:,}" + (f": {rest}" if rest else ""))
            return
        if kind == "sweep":
            self._sweep |= values
        elif kind == "train" and seen is not None:
            seen.values |= values
        self._pending = True
        now, pause = self._clock(), _REFRESH_SECONDS if self._draw else _LINE_SECONDS
        begun = self._shown is None and kind == "train"  # the first numbers are shown at once
        if begun or now - (self._start if self._shown is None else self._shown) >= pause:
            self._show(now)

    def flush(self) -> None:
        """Show what has come since the last time."""
        if self._pending:
            self._show(self._clock())

    def close(self) -> None:
        """Show the last numbers and give the terminal back; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self.flush()
        self._while_there(self._stop)

    def _known(self) -> dict[str, str]:
        """Totals of all members together; of one agent, all its numbers."""
        steps, updates = sum(one.steps for one in self._members), sum(one.updates for one in self._members)
        total = self._total * len(self._members)
        known = {"step": display.progress(steps, total), "update": f"{updates:,}"}
        # A member that has done its steps keeps its last speed, but adds nothing any more.
        busy = [one.values for one in self._members if one.steps < self._total]
        speed, learning = (
            sum(display.number(values, name) or 0.0 for values in busy)
            for name in ("steps_per_second", "updates_per_second")
        )
        left = [seconds for one in busy if (seconds := display.number(one, "budget_left_seconds")) is not None]
        left += [(total - steps) / speed] if speed else []
        if left and steps < total:
            known["left"] = display.duration(min(left))
        if len(self._members) == 1:
            return known | display.texts({**self._members[0].values, **self._sweep})
        speeds = {"steps_per_second": speed, "updates_per_second": learning}
        return known | display.texts({name: one for name, one in {**self._sweep, **speeds}.items() if one})

    def _returns(self) -> dict[int, float]:
        found = {k: display.number(one.values, "return_mean") for k, one in enumerate(self._members)}
        return {member: value for member, value in found.items() if value is not None and math.isfinite(value)}

    def _measure(self) -> str:
        return "score" if any(display.is_mixture(one.values) for one in self._members) else "return"

    def _line(self) -> str:
        """All on one line; of several members the best, the mean and the worst."""
        parts = [f"{label} {text}" for label, text in self._known().items() if label not in display.TABLE_ONLY]
        if len(self._members) == 1:
            return " | ".join(parts)
        returns = self._returns()
        if returns:
            best, worst = (choose(returns, key=returns.__getitem__) for choose in (max, min))
            ends = f"best {display.short(returns[best])} (member {best}), worst {display.short(returns[worst])} (member {worst})"
            parts.insert(2, f"{self._measure()} mean {display.short(mean(returns.values()))}, {ends}")
        return " | ".join(parts)

    def _table(self) -> Table:
        """The title, the totals side by side, and of several members a line each."""
        known = self._known()
        if not any(one.values for one in self._members):
            known["state"] = "starting"
        page, totals, beside = Table.grid(), Table.grid(padding=(0, 3, 0, 0)), max(1, self._terminal.width // _TOTAL)
        cells = [Text.assemble((f"{label} ", "dim"), text) for label, text in known.items()]
        for start in range(0, len(cells), beside):
            totals.add_row(*cells[start : start + beside])
        page.add_row(Text(self._title, style="italic"))
        page.add_row(totals)
        if len(self._members) > 1:
            page.add_row(self._lines())
        return page

    def _lines(self) -> Table:
        returns, names = self._returns(), dict.fromkeys(name for one in self._settings for name in one)
        table = Table("member", box=SIMPLE_HEAD)  # narrow: nine members fit into 80 columns
        if names:
            table.add_column(Text(", ".join(map(display.last_name, names)) + (", now" if self._pbt else "")))
        for name in ("steps", "updates", self._measure(), "trusted own", "others"):
            table.add_column(name, justify="right")
        best = max(returns, key=returns.__getitem__, default=None)
        for member, seen in enumerate(self._members):
            # Measured digits are enough: perturbed settings have as many as a float has.
            newest = {name: seen.values.get(display.last_name(name)) for name in names if self._pbt}
            values = {**self._settings[member], **{name: one for name, one in newest.items() if one is not None}}
            settings = ", ".join(_short(values.get(name)) for name in names)
            counts = f"{seen.steps:,}", f"{seen.updates:,}", _short(returns.get(member))
            trusted = [display.share(it) if math.isfinite(it) else display.NONE for it in _trusted(member, seen.values)]
            cells = [f"{member} best" if member == best else str(member), *[settings] * bool(names), *counts, *trusted]
            table.add_row(*map(Text, cells), style="bold" if member == best else None)
        return table

    def _show(self, now: float) -> None:
        self._shown, self._pending = now, False
        if self._draw is None:
            self._say(self._line())
        else:
            self._while_there(partial(self._draw, self._table()))

    def _say(self, line: str) -> None:
        """A line of its own, above the table if there is one."""
        # As text: a name in brackets is not markup. One line stays one line for those who read it by program.
        self._while_there(lambda: self._terminal.print(Text(line), soft_wrap=True))

    def _while_there(self, show: Callable[[], object]) -> None:
        """A terminal that was closed ends no run: nothing more is shown."""
        if not self._gone:
            try:
                show()
            except OSError:
                self._gone = True


def _short(value: object) -> str:
    return display.NONE if value is None else display.short(value) if isinstance(value, float) else str(value)


def _trusted(member: int, values: Mapping[str, Value]) -> tuple[float, float]:
    """The share of its own and of others' replayed steps that a member trusts; NaN where it is not known."""
    own, prefix = f"acceptance_from_{member}", "acceptance_from_"
    others = (display.number(values, name) for name in values if name.startswith(prefix) and name != own)
    return mean([display.number(values, own)]), mean(others)
