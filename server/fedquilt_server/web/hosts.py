"""Checks the name under which a visitor reaches the page.

A web site can point a name of its own at this machine (DNS rebinding). A browser then lets the site's scripts read the
page. The Host header has that name, so the page answers only to names that no web site can have.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Container, Iterable
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedquilt_server.web.addresses import is_address

OPTION: Final = "--allow-host"
_HOST: Final = re.compile(r"(?:\[(?P<address>[^\]]*)\]|(?P<name>[^:]*))(?::\d*)?", re.ASCII)
_LABELS: Final = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_LOCAL_DOMAINS: Final = (".local", ".localhost")
_SHOWN: Final = 100


def host_name(header: str) -> str:
    """Return the name or address in a Host header: without the port, in lower case; empty if it is not valid."""
    match = _HOST.fullmatch(header.strip())
    if match is None:
        return ""
    name = (match["address"] or match["name"] or "").lower().removesuffix(".")
    return name if is_address(name) or _LABELS.fullmatch(name) else ""


def is_trusted(name: str, allowed: Container[str]) -> bool:
    """Return whether the page answers to ``name``.

    It does for an IP address, a name without a dot (``localhost``, a service of Docker Compose), a name that ends in
    ``.local`` or ``.localhost``, and the names in ``allowed``.
    """
    return is_address(name) or "." not in name or name.endswith(_LOCAL_DOMAINS) or name in allowed


class HostNames:
    """The names with a dot to which the page answers: this machine's own, and those that the user allows."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._names = {host_name(name) for name in (*allowed, socket.gethostname())}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def look_up(self) -> None:
        """Add this machine's full name, from a thread: without a name server, the look-up can take minutes."""
        threading.Thread(
            target=lambda: self._names.add(host_name(socket.getfqdn())), name="host-name", daemon=True
        ).start()


class HostCheck:
    """ASGI middleware that refuses requests to names to which the page does not answer.

    Starlette's ``TrustedHostMiddleware`` cannot allow all IP addresses or all names without a dot.
    """

    def __init__(self, app: ASGIApp, allowed: Container[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or send 400 (no valid Host header) or 421 (another name)."""
        app = (self._refusal(scope) if scope["type"] == "http" else None) or self._app
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        name = host_name(headers[0]) if len(headers) == 1 else ""
        if not name:
            return PlainTextResponse("A request needs exactly one valid Host header.\n", 400)
        if is_trusted(name, self._allowed):
            return None
        shown = name[:_SHOWN]
        advice = f"Use the machine's IP address, or start the page with {OPTION} {shown}."
        return PlainTextResponse(f"The status page does not answer to the name {shown}. {advice}\n", 421)
