"""Who may read the page and control the run: whoever has the page's token.

A browser gets the token once, in the address ``/?token=...``, and keeps it in a cookie that no script and no other site
can use. Programs send it as a bearer token.
"""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedquilt_common.errors import FedquiltError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_server.runs.page_address import TOKEN_FILE
from fedquilt_server.web.hosts import is_loopback

TOKEN_VARIABLE: Final = "FEDQUILT_PAGE_TOKEN"  # noqa: S105 - a name
SHORTEST_TOKEN: Final = 16
COOKIE: Final = "fedquilt-token"
_OPEN_PATHS: Final = ("/healthz", "/static/")
"""Paths that need no token: they show nothing of the run."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class PageTokenError(FedquiltError):
    """The status page needs a token, or the one it was given cannot be used."""

    exit_code = 2


@dataclass(frozen=True)
class Access:
    """The rules of one page.

    Attributes:
        token: the secret; it is needed for every request that changes something.
        reads_need_token: whether it is needed for reading, too.
    """

    token: str
    reads_need_token: bool = False

    def knows(self, connection: HTTPConnection) -> bool:
        """Whether a request carries the token, in its cookie or as a bearer token."""
        return self._is_token(connection.cookies.get(COOKIE, "")) or self.has_bearer(connection)

    def has_bearer(self, connection: HTTPConnection) -> bool:
        """Whether a request carries the token as a bearer token, which no other site can make a browser send."""
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._is_token(given.strip())

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def choose_access(host: str, folder: Path, *, public: bool) -> Access:
    """Return the access rules for a page on an address.

    The token is that of the environment, else one that is made once and kept in the run folder. A page that other
    machines reach needs one from its user, who has to know it there.

    Args:
        host: the address that the page listens on.
        folder: the run folder.
        public: whether everybody who reaches the page may read it.

    Raises:
        RunFolderError: the token cannot be kept.
        PageTokenError: as ``choose_reader_access``.
    """
    token = _given_token(host, public=public)
    return Access(token or _keep_token(folder / TOKEN_FILE), not (is_loopback(host) or public))


def choose_reader_access(host: str, *, public: bool) -> Access | None:
    """Return the access rules for a page that controls nothing; None if everybody who reaches it may read it.

    Args:
        host: the address that the page listens on.
        public: whether everybody who reaches the page may read it.

    Raises:
        PageTokenError: other machines reach the page and there is no token; or the token is too short.
    """
    token = _given_token(host, public=public)
    return None if is_loopback(host) or public else Access(token, reads_need_token=True)


def _given_token(host: str, *, public: bool) -> str:
    """Return the token of the environment; empty without one."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token and len(token) < SHORTEST_TOKEN:
        raise PageTokenError(
            f"{TOKEN_VARIABLE} has {len(token)} characters: a token needs at least {SHORTEST_TOKEN}. "
            "Make one with `openssl rand -hex 16`"
        )
    if not token and not is_loopback(host) and not public:
        raise PageTokenError(
            f"other machines can reach the page on {host}, so it needs a token: set {TOKEN_VARIABLE}, for example to "
            "the output of `openssl rand -hex 16`. With --public-page everybody may read the page without one"
        )
    return token


def _keep_token(path: Path) -> str:
    """Return the token in a file, which is made if it is missing."""
    with report_disk_errors(path):
        kept = path.read_text().strip() if path.exists() else ""
        if len(kept) >= SHORTEST_TOKEN:
            return kept
        made = secrets.token_urlsafe(18)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_text(made + "\n")
        return made


class AccessCheck:
    """ASGI middleware that applies the access rules.

    A request that changes something needs the token. If it comes with the cookie, it must also come from the page
    itself, as the browser's header ``Sec-Fetch-Site`` or ``Origin`` shows.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, log the browser in, or send 401 (no token) or 403 (from another site)."""
        answer = self._answer(HTTPConnection(scope)) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, request: HTTPConnection) -> ASGIApp | None:
        path, method = request.url.path, request.scope["method"]
        if path == "/" and method == "GET" and "token" in request.query_params:
            return self._log_in(request)
        if method in _SAFE_METHODS:
            needs = self._access.reads_need_token and not path.startswith(_OPEN_PATHS)
            return None if not needs or self._access.knows(request) else _refusal()
        if not self._access.knows(request):
            return _refusal()
        if not self._access.has_bearer(request) and not is_from_page(request):
            return PlainTextResponse("The request comes from another site than the page.\n", 403)
        return None

    def _log_in(self, request: HTTPConnection) -> ASGIApp:
        given = request.query_params["token"]
        if not hmac.compare_digest(given.encode(), self._access.token.encode()):
            return _refusal()
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self._access.token, httponly=True, samesite="strict", path="/")
        return response


def is_from_page(request: HTTPConnection) -> bool:
    """Whether a browser sent a request from the page itself, not from another site."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin", "").partition("://")[2] == request.headers.get("host")


def _refusal() -> ASGIApp:
    text = (
        "This needs the page's token. Open the address with ?token=... once, or send the "
        f"header Authorization: Bearer TOKEN. The token is in {TOKEN_VARIABLE}, or in {TOKEN_FILE} of the run folder.\n"
    )
    return PlainTextResponse(text, 401, headers={"WWW-Authenticate": "Bearer"})
