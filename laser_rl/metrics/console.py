"""The progress of a run in the terminal: a live table, or plain lines where there is no terminal."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console as Terminal
from rich.table import Table
from rich.text import Text

from laser_rl.metrics import display
from laser_rl.metrics.screen import Screen
from laser_rl.metrics.sink import Kind, Value

_WIDE = 110  # columns for three pairs of label and number side by side; else two


class Console:
    """The sink that people watch. Says `title` at once, before there is any number.

    >>> from io import StringIO
    >>> output = StringIO()
    >>> with Console("CartPole-v1", 1000, terminal=Terminal(file=output, width=100)) as console:
    ...     console.write("train", 640, 4, {"return_mean": 21.5, "online_unrolls": 1, "replayed_unrolls": 7})
    >>> print(output.getvalue().strip())
    CartPole-v1
    step 640 of 1,000 (64 %) | update 4 | return 21.5 | replayed 7 of 8

    Of a mixture of tasks it shows the median of their normalised scores, as `score`.
    """

    def __init__(
        self,
        title: str,
        total_steps: int | None = None,
        *,
        every_seconds: float = 5.0,
        terminal: Terminal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total = title, total_steps
        self._terminal = terminal or Terminal(highlight=False)
        self._values: dict[str, Value] = {}
        self._counts = (0, 0)
        self._screen = Screen(
            title, self._table, self._line, every_seconds=every_seconds, terminal=self._terminal, clock=clock
        )

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Take a row; show it if it is time."""
        self._counts = (max(step, self._counts[0]), max(update, self._counts[1]))
        if kind == "event":
            detail = ", ".join(f"{name} {value}" for name, value in values.items() if name != "event")
            self._screen.say(f"{values.get('event', 'event')} at step {step:,}" + (f": {detail}" if detail else ""))
            if values.get("event") == "resumed":
                self._counts = (step, update)
            return
        if kind == "evaluation":
            self._screen.say(f"evaluation at step {step:,}: {display.listed(values)}")
            return
        if kind == "train":
            self._values |= values
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

    def _known(self) -> dict[str, str]:
        step = self._counts[0]
        known = {"step": display.progress(step, self._total), "update": f"{self._counts[1]:,}"}
        left = display.time_left(step, self._total, self._values)
        if left is not None:
            known["left"] = display.duration(left)
        return known | display.texts(self._values)

    def _line(self) -> str:
        known = self._known()
        return " | ".join(f"{label} {known[label]}" for label in display.LINE if label in known)

    def _table(self) -> Table:
        known, pairs = self._known(), 3 if self._terminal.width >= _WIDE else 2
        if not self._values:
            known["state"] = "starting"
        table = Table(title=Text(self._title), title_justify="left", show_header=False)
        for _ in range(pairs):
            table.add_column(style="dim")
            table.add_column(justify="right")
        cells = [Text(cell) for pair in known.items() for cell in pair]
        for start in range(0, len(cells), 2 * pairs):
            table.add_row(*cells[start : start + 2 * pairs])
        return table
