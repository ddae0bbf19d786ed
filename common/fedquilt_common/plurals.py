"""Nouns with numbers, as sentences need them: 1 client, 2 clients."""

from __future__ import annotations


def plural(noun: str, count: float) -> str:
    """Return a noun in the form that ``count`` of it need: ``client`` or ``clients``."""
    return noun if count == 1 else f"{noun}s"


def counted(count: float, noun: str) -> str:
    """Return a number with its noun: ``1 client``, ``2 clients``, ``0.5 GPUs``."""
    number = str(count) if isinstance(count, int) else f"{count:g}"
    return f"{number} {plural(noun, count)}"
