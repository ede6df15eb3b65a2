"""The progress of a run in the terminal: a live table, or plain lines where there is no terminal."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console as Terminal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from laser_rl.metrics import display
from laser_rl.metrics.sink import Kind, Value

_REFRESH_SECONDS = 0.25
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
        self._every, self._clock = every_seconds, clock
        self._terminal = terminal or Terminal(highlight=False)
        self._values: dict[str, Value] = {}
        self._counts = (0, 0)
        self._start = clock()
        self._shown: float | None = None  # when numbers were last shown
        self._pending = False
        self._live: Live | None = None
        self._closed = False
        if self._terminal.is_terminal and not self._terminal.is_dumb_terminal:
            # Refreshed by us, not by a thread of its own: a thread would be copied half-dead into forked workers.
            self._live = Live(self._table(), console=self._terminal, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._say(title)

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """Take a row; show it if it is time."""
        self._counts = (max(step, self._counts[0]), max(update, self._counts[1]))
        if kind == "event":
            detail = ", ".join(f"{name} {value}" for name, value in values.items() if name != "event")
            self._say(f"{values.get('event', 'event')} at step {step:,}" + (f": {detail}" if detail else ""))
            if values.get("event") == "resumed":
                self._counts = (step, update)
            return
        if kind == "evaluation":
            detail = ", ".join(
                f"{name} {value if isinstance(value, str) else display.short(value)}" for name, value in values.items()
            )
            self._say(f"evaluation at step {step:,}: {detail}")
            return
        if kind == "train":
            self._values |= values
        self._pending = True
        now, pause = self._clock(), _REFRESH_SECONDS if self._live else self._every
        due = kind == "train" if self._shown is None else now - self._shown >= pause
        if due or (self._shown is None and now - self._start >= pause):
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
        if self._live is not None:
            self._live.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show(self, now: float) -> None:
        self._shown, self._pending = now, False
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        else:
            known = self._known()
            self._say(" | ".join(f"{label} {known[label]}" for label in display.LINE if label in known))

    def _say(self, line: str) -> None:
        # As text: a name in brackets is not markup. One line stays one line for those who read it by program.
        self._terminal.print(Text(line), soft_wrap=True)

    def _progress(self) -> str:
        step = self._counts[0]
        if not self._total:
            return f"{step:,}"
        return f"{step:,} of {self._total:,} ({100 * step // self._total} %)"

    def _known(self) -> dict[str, str]:
        known = {"step": self._progress(), "update": f"{self._counts[1]:,}"}
        speed = display.number(self._values, "steps_per_second")
        if self._total and speed and self._counts[0] < self._total:
            known["left"] = display.duration((self._total - self._counts[0]) / speed)
        return known | display.texts(self._values)

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
