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

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from laser_rl.errors import ConfigError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost", "[::1]")
METHODS = ("GET", "HEAD")
TOKEN = "LASER_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; media-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY, "x-content-type-options": "nosniff", "x-frame-options": "DENY",
    "referrer-policy": "no-referrer", "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin", "permissions-policy": "camera=(), microphone=(), geolocation=()"
}  # fmt: skip
_DENIED = (
    "This page needs its token. Open the link that 'laser dashboard' printed; if you just did, reload this page.\n"
    "After a restart of the dashboard the link is a new one, unless LASER_DASHBOARD_TOKEN is set.\n"
)


class Access:
    """The token of a server, and the cookie that it is exchanged for.

    The cookie is derived from the token, so that a page stays known when the server is started again with the same token, and so that
    the token itself is never in a cookie: cookies do not know ports, and a browser hands them to other servers of this machine.
    """

    def __init__(self, token: str, port: int) -> None:
        self._token, self.port = token, port
        self.link = f"http://{HOST}:{port}/?token={token}"
        self.cookie_name = f"laser_dashboard_{port}"
        self.cookie = hmac.new(token.encode(), b"cookie", hashlib.sha256).hexdigest()

    def opens(self, given: list[str]) -> bool:
        return len(given) == 1 and _same(given[0], self._token)

    def knows(self, cookies: str) -> bool:
        return _same(cookie_parser(cookies).get(self.cookie_name, ""), self.cookie)


class RequestGuard:
    """Around everything; see the module. Also sets the headers of every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self._access = app, access
        self._hosts = {f"{name}:{access.port}" for name in NAMES}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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

        answer = self._refusal(scope) or self._entry(scope) or self.app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if [host.lower() for host in headers.getlist("host")] not in [[host] for host in self._hosts]:
            return PlainTextResponse(f"Ask for http://{HOST}:{self._access.port}/ by that name.\n", 400)
        if any(origin not in self._origins for origin in headers.getlist("origin")) or not _own_page(scope, headers):
            return PlainTextResponse("This was asked for by another page.\n", 403)
        # The token may be in the address of the first page, and of no other.
        offered = scope["path"] == "/" and scope["method"] in METHODS and self._access.opens(_tokens(scope))
        if not offered and not self._access.knows(headers.get("cookie", "")):
            return PlainTextResponse(_DENIED, 401)
        if scope["method"] not in METHODS:
            return PlainTextResponse("This only shows things: GET and HEAD.\n", 405, {"allow": ", ".join(METHODS)})
        return None

    def _entry(self, scope: Scope) -> Response | None:
        """The token is exchanged for a cookie, and the address bar shows it no more."""
        if scope["path"] != "/" or not _tokens(scope):
            return None
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict", path="/")
        return answer


def chosen_token() -> str:
    """That of the environment variable, which other users of the machine cannot read, or else a new one."""
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
    if not re.fullmatch(r"[A-Za-z0-9_-]{32,}", token):
        raise ConfigError(
            f"{TOKEN} has {len(token)} characters, expected 32 or more letters and digits; unset it for a new token"
        )
    return token


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), right.encode())


def _tokens(scope: Scope) -> list[str]:
    return QueryParams(scope.get("query_string", b"")).getlist("token")


def _own_page(scope: Scope, headers: Headers) -> bool:
    """What a browser says of who asks: ourselves, or a person. Another page may link to the first page, and to nothing else."""
    if headers.get("sec-fetch-site", "none") in {"same-origin", "none"}:
        return True
    return scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
