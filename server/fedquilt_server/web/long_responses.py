"""Responses that may take longer than others: event streams and downloads. Their number is bounded."""

from __future__ import annotations

from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedquilt_server.web.connections import LONG_RESPONSE

BUSY_SECONDS: Final = 5


class LongResponses:
    """The number of open long responses, and its bound: each holds its connection for as long as its visitor reads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0

    async def send(self, response: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a response without a limit of its time; status 503 if there are too many."""
        if self.open >= self.most:
            await _TOO_MANY(scope, receive, send)
            return
        scope.setdefault("state", {})[LONG_RESPONSE] = True
        self.open += 1
        try:
            await response(scope, receive, send)
        finally:
            self.open -= 1


_TOO_MANY: Final = PlainTextResponse(
    "Too many pages and downloads are open. Close one of them.\n", 503, headers={"Retry-After": str(BUSY_SECONDS)}
)
