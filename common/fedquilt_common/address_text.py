"""Addresses as messages show them."""

from __future__ import annotations


def hide_password(url: str) -> str:
    """Return a URL without its user and password, which must not reach a log; it may be an invalid URL."""
    return url if "@" not in url else f"...@{url.rpartition('@')[2]}"
