"""A network namespace for all processes of a scenario, whose only interface goes down and up again."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Iterator
from typing import Final

INTERFACE: Final = "lo"


@contextlib.contextmanager
def namespace() -> Iterator[str | None]:
    """Make a namespace and return its name; None if this machine does not allow it."""
    name = f"fedquilt-soak-{secrets.token_hex(4)}"
    try:
        _ip("netns", "add", name)
    except (subprocess.CalledProcessError, OSError):
        yield None
        return
    try:
        _ip("-n", name, "link", "set", INTERFACE, "up")
        yield name
    finally:
        _ip("netns", "delete", name)


def prefix(name: str | None) -> tuple[str, ...]:
    """Return the words before a command that run it in the namespace."""
    return ("ip", "netns", "exec", name) if name else ()


@contextlib.contextmanager
def partitioned(name: str) -> Iterator[None]:
    """Lose all packets during the block. Connections stay open, and nobody gets a sign."""
    _ip("-n", name, "link", "set", INTERFACE, "down")
    try:
        yield
    finally:
        _ip("-n", name, "link", "set", INTERFACE, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
