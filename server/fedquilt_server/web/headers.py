"""Security headers: the browser loads no code from other hosts, runs no inline code and allows no framing."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With "no-referrer", a browser would not name the origin of the forms that control the run.
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # After an upgrade, the browser must not combine an old script with a new page. An ETag still avoids the transfer.
    "cache-control": "no-cache",
}


class SecurityHeaders:
    """ASGI middleware that adds ``HEADERS`` to every response.

    It does not use Starlette's ``BaseHTTPMiddleware``, which would delay the event stream.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, and add the headers when the response starts."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_headers(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, send_with_headers)


def add_headers(headers: MutableHeaders) -> None:
    """Add each header that the response has not set itself."""
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
