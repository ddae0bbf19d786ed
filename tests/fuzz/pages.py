"""Target: requests to the status page's server, below HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fedquilt_common.errors import ProtocolError
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web.app import create_app

APP = create_app(StatusStore(Snapshot()))
_LOOP = asyncio.new_event_loop()
METHODS = ("GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "PATCH", "X")


def request(data: bytes, _: Path) -> None:
    """Send a request: the first byte is the method, lines are path, query, headers and body.

    The HTTP parser lets only visible ASCII characters through in path and query.
    """
    method, (path, query, *lines) = METHODS[data[0] % len(METHODS) if data else 0], [*data[1:].split(b"\n"), b"", b""]
    path, query = (bytes(byte for byte in part if 0x20 < byte < 0x7F) for part in (path, query))
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    if unquote(path.decode()) in ("/events", "/api/v1/stream") and method == "GET":
        return  # an event stream has no end
    status = _LOOP.run_until_complete(_status(method, path, query, headers, lines[-1]))
    assert status < 500 or unquote(path.decode()) == "/healthz", f"{method} {path!r} gives {status}"


async def _status(method: str, path: bytes, query: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path.decode()), "raw_path": path, "query_string": query, "root_path": "",
        "headers": [(b"host", b"localhost"), *headers], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await APP(scope, receive, send)
    assert sent[0]["type"] == "http.response.start"
    return int(sent[0]["status"])


TARGETS = {"requests": (request, (ProtocolError,), 1024)}
