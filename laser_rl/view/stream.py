"""News for pages, as server-sent events: a short queue for each, and who does not read is let go."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from laser_rl.view.runs import Run, Runs, encoded

QUEUE = 8
MOST_PAGES = 64
_NEWS_S, _ALIVE_S = 1.0, 5.0
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Page:
    """One that listens, to one run."""

    run: int
    queue: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    dropped: asyncio.Event = field(default_factory=asyncio.Event)


class News:
    """Tells all pages what is new; what is said of a run is made once, however many listen."""

    def __init__(self, runs: Runs, *, every_s: float = _NEWS_S) -> None:
        self._runs, self._every_s = runs, every_s
        self._pages: set[Page] = set()
        self._said: dict[int, int] = {}
        self._listed = b""
        self.dropped = 0
        """How many were let go because they did not read."""

    @property
    def pages(self) -> int:
        """How many listen."""
        return len(self._pages)

    def join(self, run: int) -> Page | None:
        """A new one; None if there are too many."""
        if len(self._pages) >= MOST_PAGES:
            return None
        page = Page(run)
        self._pages.add(page)
        self._tell([page], event("runs", encoded(listed(self._runs))))
        self._said.pop(run, None)  # it is said again, to all: cheap, and the new one knows where it is
        return page

    def leave(self, page: Page) -> None:
        """It is gone; may be called twice."""
        self._pages.discard(page)

    async def work(self) -> None:
        """Look for news until cancelled."""
        alive = time.monotonic()
        while True:
            if await self._round():
                alive = time.monotonic()
            elif time.monotonic() - alive > _ALIVE_S:
                self._tell(list(self._pages), event("alive", b"{}"))
                alive = time.monotonic()
            await asyncio.sleep(self._every_s)

    async def _round(self) -> bool:
        told = False
        pages: dict[int, list[Page]] = {}
        for page in self._pages:
            pages.setdefault(page.run, []).append(page)
        everything = encoded(listed(self._runs))
        if everything != self._listed:
            self._listed = everything
            self._tell(list(self._pages), event("runs", everything))
            told = True
        for number, listeners in pages.items():
            run = self._runs.get(number)
            if run is None:
                continue
            run.want()
            if self._said.get(number) != run.version:
                self._said[number] = run.version
                news = await asyncio.to_thread(_news_of, run)
                self._tell(listeners, news)
                told = True
        return told

    def _tell(self, pages: list[Page], news: bytes) -> None:
        for page in pages:
            try:
                page.queue.put_nowait(news)
            except asyncio.QueueFull:
                self._drop(page)

    def _drop(self, page: Page) -> None:
        if page in self._pages:
            self._pages.discard(page)
            self.dropped += 1
            page.dropped.set()


class Listening(Response):
    """The answer that never ends: news as they come, until the page leaves, or is let go."""

    def __init__(self, news: News, page: Page, abort: Callable[[Scope], None]) -> None:
        super().__init__(media_type="text/event-stream")
        self._news, self._page, self._abort = news, page, abort

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the first of three: the page is gone, it was let go, the server ends."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        tasks = [
            asyncio.create_task(self._send(headers, send)),
            asyncio.create_task(_gone(receive)),
            asyncio.create_task(_let_go(self._page)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._news.leave(self._page)
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
            if self._page.dropped.is_set():
                self._abort(scope)  # closing politely would wait for it to read what is on its way

    async def _send(self, headers: list[tuple[bytes, bytes]], send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for news in _of(self._page):
            await send({"type": "http.response.body", "body": news, "more_body": True})


def event(name: str, data: bytes) -> bytes:
    r"""One event as it goes over the wire.

    >>> event("alive", b"{}")
    b'event: alive\ndata: {}\n\n'
    """
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def listed(runs: Runs) -> list[dict[str, object]]:
    """The runs to choose from."""
    return [{"run": run.number, "name": run.name, "state": run.state} for run in runs.every()]


async def _of(page: Page) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    while True:
        yield await page.queue.get()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _let_go(page: Page) -> None:
    await page.dropped.wait()


def _news_of(run: Run) -> bytes:
    try:
        with run.lock:
            return event("run", encoded(run.summary()))
    except Exception:  # one broken directory must not silence the others
        _log.exception("%s could not be summed up; its page may be out of date", run.path)
        return event("alive", b"{}")
