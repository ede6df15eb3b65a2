"""The progress of a sweep in the terminal: a live table with a line a member, or one plain line for all where there is no terminal."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console as Terminal
from rich.console import Group
from rich.table import Table
from rich.text import Text

from laser_rl.metrics import display
from laser_rl.metrics.screen import Screen
from laser_rl.metrics.sink import Kind, Value

_NONE = "–"
_TUNED = ("learning_rate",)  # shown under population based training even if members start equal


@dataclass
class _Seen:
    """What the rows of a member have said so far."""

    steps: int = 0
    updates: int = 0
    values: dict[str, Value] = field(default_factory=dict)


class SweepConsole:
    """The sink that people watch during a sweep. Says `title` at once, before there is any number.

    Args:
        title: what is trained.
        settings: of each member, as in `sweep.json`.
        total_steps: of each member.
        pbt: whether settings move: then the newest values are shown instead of the first.
        every_seconds: the least time between plain lines.
        terminal: where to; standard output if left out.
        clock: in seconds.

    >>> from io import StringIO
    >>> output = StringIO()
    >>> with SweepConsole("CartPole-v1", [{}, {}], 1000, terminal=Terminal(file=output)) as console:
    ...     console.write("train", 640, 4, {"member": 1, "return_mean": 21.5, "acceptance_from_0": 0.5, "acceptance_from_1": 1.0})
    >>> print(output.getvalue().strip())
    CartPole-v1
    step 640 of 2,000 (32 %) | update 4 | return best 21.5 (member 1), mean 21.5, worst 21.5 (member 1) | trusted own 100.0 %, others 50.0 %
    """

    def __init__(
        self,
        title: str,
        settings: Sequence[Mapping[str, Any]],
        total_steps: int | None = None,
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
        self._screen = Screen(
            title, self._table, self._line, every_seconds=every_seconds, terminal=terminal, clock=clock
        )

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Take a row; show it if it is time."""
        seen = self._seen(values)
        if seen is not None:
            seen.steps, seen.updates = max(step, seen.steps), max(update, seen.updates)
        if kind == "event":
            self._event(seen, step, update, values)
            return
        if kind == "evaluation":
            rest = {name: value for name, value in values.items() if name != "member"}
            self._screen.say(f"{_who(values)}evaluation at step {step:,}: {display.listed(rest)}")
            return
        if kind == "sweep":
            self._sweep |= values
        elif kind == "train" and seen is not None:
            seen.values |= values
        self._screen.changed(first=kind == "train")

    def flush(self) -> None:
        """Show what has come since the last time."""
        self._screen.flush()

    def close(self) -> None:
        """Show the last numbers and give the terminal back; may be called twice."""
        self._screen.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _seen(self, values: Mapping[str, Value]) -> _Seen | None:
        """The member that a row is of; None for a row of the sweep."""
        if "member" not in values:
            return None
        member = int(values["member"])
        if not 0 <= member < len(self._members):
            raise ValueError(
                f"a row of member {member}, expected 0 to {len(self._members) - 1}; give the console the settings of all members"
            )
        return self._members[member]

    def _event(self, seen: _Seen | None, step: int, update: int, values: Mapping[str, Value]) -> None:
        event = values.get("event", "event")
        if event == "resumed" and seen is not None:
            seen.steps, seen.updates = step, update
            return  # the sweep's own row says it once for all
        if event == "exploit":
            self._screen.say(_exploit(step, values))
            return
        rest = {name: value for name, value in values.items() if name not in {"event", "member"}}
        self._screen.say(f"{_who(values)}{event} at step {step:,}" + (f": {display.listed(rest)}" if rest else ""))

    def _known(self) -> dict[str, str]:
        """Totals of all members together."""
        steps, updates = sum(one.steps for one in self._members), sum(one.updates for one in self._members)
        total = None if self._total is None else self._total * len(self._members)
        known = {"step": display.progress(steps, total), "update": f"{updates:,}"}
        # A member that has done its steps keeps its last speed, but adds nothing any more.
        busy = [one.values for one in self._members if self._total is None or one.steps < self._total]
        speed = sum(display.number(values, "steps_per_second") or 0.0 for values in busy)
        learning = sum(display.number(values, "updates_per_second") or 0.0 for values in busy)
        budgets = [left for values in busy if (left := display.number(values, "budget_left_seconds")) is not None]
        budget = {"budget_left_seconds": min(budgets)} if budgets else {}
        left = display.time_left(steps, total, {"steps_per_second": speed, **budget})
        if left is not None:
            known["left"] = display.duration(left)
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

    def _table(self) -> Group:
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
            cells = [Text(cell) for cell in self._cells(member, seen, returns.get(member), best=member == best)]
            table.add_row(*cells, style="bold" if member == best else None)
        return Group(Text(self._title, style="italic"), Text(totals), table)

    def _cells(self, member: int, seen: _Seen, value: float | None, *, best: bool) -> list[str]:
        own, others = _trusted(member, seen.values)
        return [
            f"{member} best" if best else str(member),
            *([self._setting_cell(member)] if self._names else []),
            f"{seen.steps:,}",
            f"{seen.updates:,}",
            _NONE if value is None else display.short(value),
            _NONE if own is None else display.share(own),
            _NONE if others is None else display.share(others),
        ]

    def _setting_cell(self, member: int) -> str:
        values = dict(self._settings[member])
        if self._pbt:
            newest = self._members[member].values
            values |= {name: newest[last] for name in self._names if (last := display.last_name(name)) in newest}
        # Measured digits are enough: perturbed settings have as many as a float has.
        shown = (values.get(name, _NONE) for name in self._names)
        return ", ".join(display.short(value) if isinstance(value, float) else str(value) for value in shown)


def _who(values: Mapping[str, Value]) -> str:
    return f"member {values['member']}: " if "member" in values else ""


def _exploit(step: int, values: Mapping[str, Value]) -> str:
    """Who copied whom, why, and what became of its settings."""
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
