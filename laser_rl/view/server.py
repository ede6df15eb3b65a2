"""The server: routes, the files of the page, and the socket that it listens on."""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar, cast

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from laser_rl.disk import open_in_folder
from laser_rl.errors import ConfigError
from laser_rl.view.comparison import SIDE_BY_SIDE, comparison, overview
from laser_rl.view.facts import details, summary, video_id
from laser_rl.view.panels import PANELS, Asked, Data
from laser_rl.view.report import TYPES, static_files
from laser_rl.view.runs import MOST_COMPARED, Runs, Viewed, ViewedComparison, ViewedRun
from laser_rl.view.security import HOST, Access, RequestGuard

V = TypeVar("V", bound=Viewed)
MOST_CONNECTIONS = 256
_SEND_BUFFER_BYTES = 32 << 10  # what the kernel keeps for a page that does not read
_PATIENCE_MS = 15_000  # then the kernel ends a connection that takes nothing
_KEEP_ALIVE_S = 30
_MOST_CACHED = 64
_REST, _LONGEST_HOLD_S = 100, 5.0
_NICE = 10


class _OpenFile(FileResponse):
    """A file that is open already, in parts if it is asked for in parts: what its path leads to by now does not matter."""

    def __init__(self, file: BufferedReader, media_type: str) -> None:
        handle = file.fileno()
        super().__init__(f"/proc/self/fd/{handle}", media_type=media_type, stat_result=os.fstat(handle))
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def live_summary(run: ViewedRun | ViewedComparison) -> Data:
    if isinstance(run, ViewedRun):
        return {**summary(run.subject(), known=run.known), "run": run.number, "state": run.state}
    with run.subjects() as subjects:
        known = min((one.known for one in run.runs), default=1.0)
        return {**overview(subjects), "run": run.number, "known": round(known, 3)}


def _live_panel(run: ViewedRun | ViewedComparison, name: str, asked: Asked) -> Data:
    if isinstance(run, ViewedRun) and name in PANELS:
        return PANELS[name](run.subject(), asked)
    if isinstance(run, ViewedComparison):
        with run.subjects() as subjects:
            if panel := comparison(subjects).get(name):
                return panel[1](asked)
    raise HTTPException(404)


class _Pages:
    """What each route answers. Those that are not `async` may wait for the disk, and run in a thread."""

    def __init__(self, runs: Runs) -> None:
        self._viewed, self._files, self._compared = runs, static_files(), ViewedComparison()

    async def _static(self, request: Request) -> Response:
        """From a table that was made at the start: no path of a request reaches the disk."""
        name = request.path_params.get("name", "index.html")
        if name not in self._files:
            raise HTTPException(404)
        return Response(self._files[name], media_type=TYPES[Path(name).suffix], headers={"cache-control": "no-cache"})

    async def _runs(self, request: Request) -> Response:
        every = self._viewed.every()
        listed = [{"run": run.number, "name": run.name, "state": run.state} for run in every]
        if len(every) > 1:
            newest = f"newest {MOST_COMPARED} of " if len(every) > MOST_COMPARED else ""
            listed.insert(
                0, {"run": self._compared.number, "name": SIDE_BY_SIDE, "state": f"{newest}{len(every)} directories"}
            )
        return JSONResponse(listed)

    async def _summary(self, request: Request) -> Response:
        return await self._answer(self._chosen(request), "summary", live_summary)

    async def _details(self, request: Request) -> Response:
        return await self._answer(self._run(request), "details", lambda run: details(run.subject(), run.videos()))

    async def _panel(self, request: Request) -> Response:
        name, query = request.path_params["panel"], request.query_params
        learner = query.get("learner", "all")
        number = int(learner) if learner.isascii() and learner.isdecimal() and len(learner) < 4 else -1  # noqa: PLR2004
        asked = Asked("time" if query.get("x") == "time" else "step", number if name == "trust" else -1)
        return await self._answer(self._chosen(request), (name, asked), lambda run: _live_panel(run, name, asked))

    def _video(self, request: Request) -> Response:
        for one in self._run(request).videos():
            if video_id(one) == request.path_params["video"]:
                with contextlib.suppress(OSError):
                    return _OpenFile(open_in_folder(one.path), one.media)
        raise HTTPException(404)

    def routes(self) -> list[Route]:
        return [
            Route("/", self._static),
            Route("/static/{name:path}", self._static),
            Route("/api/runs", self._runs),
            Route("/api/runs/{run:int}", self._summary),
            Route("/api/runs/{run:int}/details", self._details),
            Route("/api/runs/{run:int}/panels/{panel}", self._panel),
            Route("/api/runs/{run:int}/videos/{video}", self._video),
        ]

    def _chosen(self, request: Request) -> ViewedRun | ViewedComparison:
        """A run, or all of them side by side by the number that no run has."""
        every = self._viewed.every()
        if request.path_params["run"] != self._compared.number or len(every) < 2:  # noqa: PLR2004 - a comparison needs two
            return self._run(request)
        self._compared.look(every)
        return self._compared

    def _run(self, request: Request) -> ViewedRun:
        number = int(request.path_params["run"])
        for run in self._viewed.every()[number : number + 1]:
            run.wanted = time.monotonic()
            return run
        raise HTTPException(404)

    async def _answer(self, run: V, key: object, make: Callable[[V], Data]) -> Response:
        """What was made before, if it still holds: without a lock and without a thread, since most requests are polls."""
        body = _known(run, key)
        if body is None:
            body = await run_in_threadpool(self._made, run, key, make)
        return Response(body, media_type="application/json")

    def _made(self, run: V, key: object, make: Callable[[V], Data]) -> bytes:
        """Made once for each version of a run, by one thread, however many ask, and so seldom that it takes a hundredth of the time."""
        with run.lock:
            if known := _known(run, key):  # another request has made it meanwhile
                return known
            if len(run.cache) >= _MOST_CACHED:
                run.cache.clear()
            began = time.thread_time()  # not the clock on the wall: others may use the processor
            body = encoded({**make(run), "version": run.version})
            hold = min(_LONGEST_HOLD_S, _REST * (time.thread_time() - began))
            run.cache[key] = run.version, time.monotonic() + hold, body
            return body


def _known(run: Viewed, key: object) -> bytes | None:
    version, good_until, body = run.cache.get(key, (-1, 0.0, None))
    return body if version == run.version or time.monotonic() <= good_until else None


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def application(runs: Runs, access: Access) -> RequestGuard:

    @contextlib.asynccontextmanager
    async def living(app: Starlette) -> AsyncIterator[None]:
        runs.start()
        yield
        runs.close()

    app = Starlette(routes=_Pages(runs).routes(), lifespan=living)
    app.router.redirect_slashes = False
    return RequestGuard(app, access)


def serve(places: Sequence[Path], listening: socket.socket, access: Access) -> int:
    os.nice(_NICE)  # training comes first
    sys.setswitchinterval(0.001)  # the thread that reads a long log lets requests pass
    runs = Runs(places)
    for run in runs.every()[:1]:
        run.wanted = time.monotonic()
    with listening, contextlib.suppress(KeyboardInterrupt):
        server_of(runs, access, listening).run(sockets=[listening])
    return 0


def listening_socket(port: int) -> socket.socket:
    """On this machine only."""
    try:
        if port not in range(1 << 16):  # `create_server` would leave its socket open
            raise OSError("there is no such port")  # noqa: TRY301 - told like any other
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        raise ConfigError(f"port {port} of {HOST} cannot be used: {error}; choose another --port, or 0") from error


def server_of(runs: Runs, access: Access, listening: socket.socket) -> uvicorn.Server:
    """A server for `serve(sockets=[listening])`; connections inherit the socket's options."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _PATIENCE_MS)
    config = uvicorn.Config(
        cast("ASGIApp", application(runs, access)),
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,  # addresses hold the token
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)
