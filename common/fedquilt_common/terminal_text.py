"""Texts that control no terminal, whoever wrote them."""

from __future__ import annotations


def printable(text: str, kept: str = "") -> str:
    """Replace characters that control a terminal by spaces, except those in ``kept``: agents report texts, too."""
    return "".join(char if char.isprintable() or char in kept else " " for char in text)
