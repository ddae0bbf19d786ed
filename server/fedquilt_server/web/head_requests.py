"""HEAD requests: every route that serves GET serves them, too, as RFC 9110 (section 9.1) requires."""

from __future__ import annotations

import anyio
import anyio.lowlevel
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """ASGI middleware that serves HEAD as GET without the body; ``Content-Length`` stays that of the body.

    The application is cancelled as soon as the headers are sent: event streams and long downloads do not go on.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, and send only the headers of the response to HEAD."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        with anyio.CancelScope() as whole:

            async def send_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    await send(message)
                    await send({"type": "http.response.body"})
                    whole.cancel()
                await anyio.lowlevel.checkpoint()  # once cancelled, the application gets no further

            await self._app({**scope, "method": "GET"}, receive, send_headers)
