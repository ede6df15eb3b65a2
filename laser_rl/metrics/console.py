"""The progress of a run or sweep in the terminal: a live table, or a plain line every few seconds where there is no terminal."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from laser_rl.metrics import display
from laser_rl.metrics.rows import Kind, Value

_NONE = "–"
_TUNED = ("learning_rate",)  # shown under population based training even if members start equal
_WIDE = 110  # columns for three pairs of label and number side by side; else two
_REFRESH_SECONDS = 0.25


@dataclass
class _Seen:
    """What the rows of a member have said so far."""

    steps: int = 0
    updates: int = 0
    values: dict[str, Value] = field(default_factory=dict)


class Console(AbstractContextManager["Console"]):
    """The sink that people watch. Says `title` at once, before there is any number.

    Args:
        title: what is trained.
        total_steps: of each member.
        settings: of each member, as in `sweep.json`; of one agent all its numbers are shown, of several a line each.
        pbt: whether settings move: then the newest values are shown instead of the first.
        every_seconds: the least time between plain lines.
        terminal: where to; standard output if left out.
        clock: in seconds.

    >>> from io import StringIO
    >>> output = StringIO()
    >>> with Console("CartPole-v1", 1000, terminal=Terminal(file=output, width=100)) as console:
    ...     console.write("train", 640, 4, {"return_mean": 21.5, "online_unrolls": 1, "replayed_unrolls": 7})
    >>> print(output.getvalue().strip())
    CartPole-v1
    step 640 of 1,000 (64 %) | update 4 | return 21.5 | replayed 7 of 8
    """

    def __init__(
        self,
        title: str,
        total_steps: int | None = None,
        settings: Sequence[Mapping[str, Any]] = ({},),
        *,
        pbt: bool = False,
        every_seconds: float = 5.0,
        terminal: Terminal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._pbt = title, total_steps, pbt
        self._settings = [dict(one) for one in settings]
        self._members = [_Seen() for _ in settings]
        self._sweep: dict[str, Value] = {}
        self._names = list(dict.fromkeys(name for one in settings for name in one))
        known = {display.last_name(name) for name in self._names}
        self._names += [name for name in _TUNED if pbt and name not in known]
        self._every, self._clock, self._start = every_seconds, clock, clock()
        self._terminal = terminal or Terminal(highlight=False)
        self._shown: float | None = None  # when numbers were last shown
        self._pending = self._closed = self._gone = False
        self._live: Live | None = None
        if self._terminal.is_terminal and not self._terminal.is_dumb_terminal:
            # Refreshed by us, not by a thread of its own: a thread would be copied half-dead into forked workers.
            self._live = Live(self._table(), console=self._terminal, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._say(title)

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Take a row; show it if it is time."""
        seen = self._seen(values)
        if seen is not None:
            seen.steps, seen.updates = max(step, seen.steps), max(update, seen.updates)
        if kind == "event":
            self._event(seen, step, update, values)
        elif kind == "evaluation":
            self._say_values("evaluation", step, values)
        else:
            if kind == "sweep":
                self._sweep |= values
            elif kind == "train" and seen is not None:
                seen.values |= values
            self._changed(first=kind == "train")

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
        if self._live is not None:
            self._while_there(self._live.stop)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _seen(self, values: Mapping[str, Value]) -> _Seen | None:
        """The member that a row is of; None for a row of a sweep."""
        if "member" not in values:
            return self._members[0] if len(self._members) == 1 else None
        return self._members[int(values["member"])]

    def _event(self, seen: _Seen | None, step: int, update: int, values: Mapping[str, Value]) -> None:
        event = values.get("event", "event")
        if event == "resumed" and seen is not None:
            seen.steps, seen.updates = step, update
            if "member" in values:
                return  # the sweep's own row says it once for all
        if event == "exploit":
            self._say(_exploit(step, values))
        else:
            self._say_values(str(event), step, values)

    def _say_values(self, what: str, step: int, values: Mapping[str, Value]) -> None:
        rest = {name: value for name, value in values.items() if name not in {"event", "member"}}
        self._say(f"{_who(values)}{what} at step {step:,}" + (f": {display.listed(rest)}" if rest else ""))

    def _known(self) -> dict[str, str]:
        """Totals of all members together; of one agent, all its numbers."""
        steps, updates = sum(one.steps for one in self._members), sum(one.updates for one in self._members)
        total = None if self._total is None else self._total * len(self._members)
        known = {"step": display.progress(steps, total), "update": f"{updates:,}"}
        # A member that has done its steps keeps its last speed, but adds nothing any more.
        busy = [one.values for one in self._members if self._total is None or one.steps < self._total]
        speed = sum(display.number(values, "steps_per_second") or 0.0 for values in busy)
        learning = sum(display.number(values, "updates_per_second") or 0.0 for values in busy)
        left = [seconds for one in busy if (seconds := display.number(one, "budget_left_seconds")) is not None]
        left += [(total - steps) / speed] if total and speed else []
        if left and (total is None or steps < total):
            known["left"] = display.duration(min(left))
        if len(self._members) == 1:
            return known | display.texts({**self._members[0].values, **self._sweep})
        if speed:
            known["steps/s"] = display.count(speed)
        if learning:
            known["updates/s"] = display.short(learning)
        fill = display.texts(self._sweep).get("replay")
        return known | ({"replay": fill} if fill else {})

    def _measure(self) -> str:
        return "score" if any(display.is_mixture(one.values) for one in self._members) else "return"

    def _returns(self) -> dict[int, float]:
        found = {k: display.number(one.values, "return_mean") for k, one in enumerate(self._members)}
        return {member: value for member, value in found.items() if value is not None and math.isfinite(value)}

    def _line(self) -> str:
        known = self._known()
        if len(self._members) == 1:
            return " | ".join(f"{label} {known[label]}" for label in display.LINE if label in known)
        parts = [f"{label} {known.pop(label)}" for label in ("step", "update")]
        returns = self._returns()
        if returns:
            high, low = max(returns, key=returns.__getitem__), min(returns, key=returns.__getitem__)
            mean = display.short(sum(returns.values()) / len(returns))
            ends = [f"{display.short(returns[member])} (member {member})" for member in (high, low)]
            parts.append(f"{self._measure()} best {ends[0]}, mean {mean}, worst {ends[1]}")
        own, others = zip(*(_trusted(k, one.values) for k, one in enumerate(self._members)), strict=True)
        trusted = {"own": _mean(own), "others": _mean(others)}
        texts = [f"{name} {display.share(share)}" for name, share in trusted.items() if share is not None]
        parts += [f"trusted {', '.join(texts)}"] if texts else []
        return " | ".join(parts + [f"{label} {text}" for label, text in known.items()])

    def _table(self) -> RenderableType:
        return self._numbers() if len(self._members) == 1 else self._lines()

    def _numbers(self) -> Table:
        """All numbers of one agent, some pairs of label and number side by side."""
        known, pairs = self._known(), 3 if self._terminal.width >= _WIDE else 2
        if not self._members[0].values:
            known["state"] = "starting"
        table = Table(title=Text(self._title), title_justify="left", show_header=False)
        for _ in range(pairs):
            table.add_column(style="dim")
            table.add_column(justify="right")
        cells = [Text(cell) for pair in known.items() for cell in pair]
        for start in range(0, len(cells), 2 * pairs):
            table.add_row(*cells[start : start + 2 * pairs])
        return table

    def _lines(self) -> Group:
        """A line a member."""
        known, returns = self._known(), self._returns()
        totals = "   ".join(f"{label} {text}" for label, text in known.items())
        if not any(one.values for one in self._members):
            totals = f"{len(self._members)} members, starting"
        table = Table(box=SIMPLE_HEAD)  # narrow: nine members fit into 80 columns
        table.add_column("member")
        if self._names:
            heading = ", ".join(display.last_name(name) for name in self._names)
            table.add_column(Text(heading + (", now" if self._pbt else "")))
        for name in ("steps", "updates", self._measure(), "trusted own", "others"):
            table.add_column(name, justify="right")
        best = max(returns, key=returns.__getitem__) if returns else None
        for member, seen in enumerate(self._members):
            own, others = _trusted(member, seen.values)
            cells = [
                f"{member} best" if member == best else str(member),
                *([self._setting_cell(member)] if self._names else []),
                f"{seen.steps:,}",
                f"{seen.updates:,}",
                _short(returns.get(member)),
                _NONE if own is None else display.share(own),
                _NONE if others is None else display.share(others),
            ]
            table.add_row(*map(Text, cells), style="bold" if member == best else None)
        return Group(Text(self._title, style="italic"), Text(totals), table)

    def _setting_cell(self, member: int) -> str:
        values = dict(self._settings[member])
        if self._pbt:
            newest = self._members[member].values
            values |= {name: newest[last] for name in self._names if (last := display.last_name(name)) in newest}
        # Measured digits are enough: perturbed settings have as many as a float has.
        shown = (values.get(name, _NONE) for name in self._names)
        return ", ".join(display.short(value) if isinstance(value, float) else str(value) for value in shown)

    def _changed(self, *, first: bool) -> None:
        """There are new numbers: show them if it is time. With `first` they are worth showing at once if none have been."""
        self._pending = True
        now, pause = self._clock(), _REFRESH_SECONDS if self._live else self._every
        due = first if self._shown is None else now - self._shown >= pause
        if due or (self._shown is None and now - self._start >= pause):
            self._show(now)

    def _show(self, now: float) -> None:
        self._shown, self._pending = now, False
        if self._live is None:
            self._say(self._line())
        else:
            self._while_there(partial(self._live.update, self._table(), refresh=True))

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


def _who(values: Mapping[str, Value]) -> str:
    return f"member {values['member']}: " if "member" in values else ""


def _exploit(step: int, values: Mapping[str, Value]) -> str:
    """One copy of PBT: recipient, donor, reason and the changed settings."""
    moved = [
        f"{name.removeprefix('after_')} {_short(values.get('before_' + name.removeprefix('after_')))} to {_short(value)}"
        for name, value in values.items()
        if name.startswith("after_")
    ]
    scores = f" ({_short(values.get('score'))} against {_short(values.get('donor_score'))})"
    line = f"{_who(values)}exploit at step {step:,}: copies member {values.get('donor', _NONE)}{scores}"
    return ", ".join([line, *moved])


def _short(value: Value | None) -> str:
    return _NONE if value is None else value if isinstance(value, str) else display.short(value)


def _trusted(member: int, values: Mapping[str, Value]) -> tuple[float | None, float | None]:
    """The share of its own and of others' replayed steps that a member trusts."""
    own = f"acceptance_from_{member}"
    others = [display.number(values, name) for name in values if name.startswith("acceptance_from_") and name != own]
    return display.number(values, own), _mean(others)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
