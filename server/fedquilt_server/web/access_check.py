"""Applies the access rules of a page to each request."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedquilt_server.runs.page_address import TOKEN_FILE, TOKEN_VARIABLE
from fedquilt_server.web.access import Access

_OPEN_PATHS: Final = ("/healthz", "/static/")
"""Paths that need no token: they show nothing of the run."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


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
            return None if not needs or self._access.allows(request) else _refusal()
        if not self._access.allows(request):
            return _refusal()
        if not self._access.has_bearer(request) and not is_from_page(request):
            return PlainTextResponse("The request comes from another site than the page.\n", 403)
        return None

    def _log_in(self, request: HTTPConnection) -> ASGIApp:
        given = request.query_params["token"]
        if not hmac.compare_digest(given.encode(), self._access.token.encode()):
            return _refusal()
        response = RedirectResponse("/", 303)
        response.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="strict", path="/")
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
