"""When and where progress is shown: a table that is drawn again in place, or a line every few seconds where there is no terminal."""

import time
from collections.abc import Callable
from functools import partial

from rich.console import Console as Terminal
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

_REFRESH_SECONDS = 0.25


class Screen:
    """A terminal that shows `table()` live, or says `line()` from time to time. Says `title` at once, before there is any number.

    >>> from io import StringIO
    >>> output = StringIO()
    >>> screen = Screen("a run", lambda: "", lambda: "step 640", terminal=Terminal(file=output))
    >>> screen.changed(first=True)
    >>> screen.close()
    >>> output.getvalue().splitlines()
    ['a run', 'step 640']
    """

    def __init__(
        self,
        title: str,
        table: Callable[[], RenderableType],
        line: Callable[[], str],
        *,
        every_seconds: float = 5.0,
        terminal: Terminal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._line = table, line
        self._every, self._clock = every_seconds, clock
        self._terminal = terminal or Terminal(highlight=False)
        self._start = clock()
        self._shown: float | None = None  # when numbers were last shown
        self._pending = False
        self._live: Live | None = None
        self._closed = self._gone = False
        if self._terminal.is_terminal and not self._terminal.is_dumb_terminal:
            # Refreshed by us, not by a thread of its own: a thread would be copied half-dead into forked workers.
            self._live = Live(self._table(), console=self._terminal, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self.say(title)

    def changed(self, *, first: bool) -> None:
        """There are new numbers: show them if it is time. With `first` they are worth showing at once if none have been."""
        self._pending = True
        now, pause = self._clock(), _REFRESH_SECONDS if self._live else self._every
        due = first if self._shown is None else now - self._shown >= pause
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
            self._while_there(self._live.stop)

    def say(self, line: str) -> None:
        """A line of its own, above the table if there is one."""
        # As text: a name in brackets is not markup. One line stays one line for those who read it by program.
        self._while_there(lambda: self._terminal.print(Text(line), soft_wrap=True))

    def _show(self, now: float) -> None:
        self._shown, self._pending = now, False
        if self._live is None:
            self.say(self._line())
        else:
            self._while_there(partial(self._live.update, self._table(), refresh=True))

    def _while_there(self, show: Callable[[], object]) -> None:
        """A terminal that was closed ends no run: nothing more is shown."""
        if not self._gone:
            try:
                show()
            except OSError:
                self._gone = True
