"""Access to the page: only with the token, under this machine's own names, from our own pages. Deny by default.

A guard stands around the whole application, so that a route that is added later is closed by default. In this order:

1. 400 unless `Host` is this machine with our port: a foreign name that resolves to 127.0.0.1 (DNS rebinding) stops here.
2. 403 if another origin asks: `Origin`, or `Sec-Fetch-Site` of a browser.
3. 401 without the token, whatever the path or the method, known or not.
4. 405 for anything but GET and HEAD: nothing here changes anything.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laser_rl.errors import ConfigError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost", "[::1]")
METHODS = ("GET", "HEAD")
_TOKEN_BYTES = 32
_SHORTEST_TOKEN = 32  # characters of a token in a file
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; media-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_DENIED = (
    "This page needs its token. Open the link that 'laser dashboard' printed; if you just did, reload this page.\n"
    "After a restart of the dashboard the link is a new one, unless --token-file is used.\n"
)


class Access:
    """The token of a server, the cookie that it is exchanged for, and codes that open the page once.

    The cookie is derived from the token, so that a page stays known when the server is started again with the same token, and so that
    the token itself is never in a cookie: cookies do not know ports, and a browser hands them to other servers of this machine.
    """

    def __init__(self, token: str, port: int) -> None:
        self._token = token
        self._codes: set[str] = set()
        self.port = port
        self.cookie_name = f"laser_dashboard_{port}"
        self.cookie = hmac.new(token.encode(), b"cookie", hashlib.sha256).hexdigest()

    @property
    def link(self) -> str:
        """The address with the token, for a browser."""
        return f"http://{HOST}:{self.port}/?token={self._token}"

    def once(self) -> str:
        """A code that opens the page once: for the command line of a browser, which every user of the machine can see."""
        code = secrets.token_urlsafe(_TOKEN_BYTES)
        self._codes.add(code)
        return code

    def opens(self, given: str) -> bool:
        """Whether it is the token, or a code that was not used yet."""
        if _same(given, self._token):
            return True
        for code in tuple(self._codes):
            if _same(given, code):
                self._codes.discard(code)
                return True
        return False

    def knows(self, cookies: str) -> bool:
        """Whether the cookie is ours."""
        try:
            found = SimpleCookie(cookies).get(self.cookie_name)
        except CookieError:
            return False
        return found is not None and _same(found.value, self.cookie)


class RequestGuard:
    """Around everything; see the module. Also sets the headers of every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self._access = app, access
        self._hosts = {f"{name}:{access.port}" for name in NAMES}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks over web sockets
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._entry(scope)
        await (answer or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if [host.lower() for host in headers.getlist("host")] not in [[host] for host in self._hosts]:
            return PlainTextResponse(f"Ask for http://{HOST}:{self._access.port}/ by that name.\n", 400)
        if any(origin not in self._origins for origin in headers.getlist("origin")) or not _own_page(scope, headers):
            return PlainTextResponse("This was asked for by another page.\n", 403)
        if not self._access.knows(headers.get("cookie", "")) and not self._offers(scope):
            return PlainTextResponse(_DENIED, 401)
        if scope["method"] not in METHODS:
            return PlainTextResponse("This only shows things: GET and HEAD.\n", 405, {"allow": ", ".join(METHODS)})
        return None

    def _offers(self, scope: Scope) -> bool:
        """Whether the token is in the address: of the first page, and of no other."""
        given = _query(scope).get("token", [])
        right_place = scope["path"] == "/" and scope["method"] in METHODS and len(given) == 1
        return right_place and self._access.opens(given[0])

    def _entry(self, scope: Scope) -> Response | None:
        """The token is exchanged for a cookie, and the address bar shows it no more."""
        if scope["path"] != "/" or "token" not in _query(scope):
            return None
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict", path="/")
        return answer


def token_from(path: Path | None) -> str:
    """A new token, or the one in a file that only its owner can read; the file is made if there is none."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    if path is None:
        return token
    try:
        if not path.exists():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(token + "\n")
            return token
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as file:
            found, token = os.fstat(file.fileno()), file.read(4096).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token-file {path} cannot be made or read: {error}; name another file of yours") from error
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"--token-file {path} can be read by others, expected a file of yours with mode 600: chmod 600 {path}"
        )
    if not re.fullmatch(rf"[A-Za-z0-9_-]{{{_SHORTEST_TOKEN},}}", token):
        raise ConfigError(
            f"--token-file {path} holds {len(token)} characters, expected at least {_SHORTEST_TOKEN} letters and digits; "
            "remove it, and a new one is made"
        )
    return token


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), right.encode())


def _query(scope: Scope) -> dict[str, list[str]]:
    try:
        return parse_qs(scope.get("query_string", b"").decode("ascii"), max_num_fields=20)
    except ValueError:
        return {}


def _own_page(scope: Scope, headers: Headers) -> bool:
    """What a browser says of who asks: ourselves, or a person. Another page may link to the first page, and to nothing else."""
    if headers.get("sec-fetch-site", "none") in {"same-origin", "none"}:
        return True
    return scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
