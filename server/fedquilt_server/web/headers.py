"""Headers that hold the browser to this server: no foreign code, no inline code, no framing."""

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
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # No mix of an old script with a new page after an upgrade; an ETag still saves the transfer.
    "cache-control": "no-cache",
}


class SafeHeaders:
    """ASGI middleware; plain, as Starlette's BaseHTTPMiddleware would hold up the event stream."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add our headers where the answer starts."""

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_headers(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, send_safe)


def add_headers(headers: MutableHeaders) -> None:
    """Add what the answer has not set itself."""
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
