"""How long a text in a message can be."""

from __future__ import annotations

from typing import Final

LONGEST_TEXT: Final = 500
"""Most characters of a text in a message."""
_CUT: Final = " ..."


def shorten_text(text: str) -> str:
    """Cut a text to what a message can hold, and mark the cut; a path is left out rather than cut."""
    if len(text) <= LONGEST_TEXT:
        return text
    most = LONGEST_TEXT - len(_CUT)
    before, _, word = text[: most + 1].rpartition(" ")
    return f"{before if '/' in word else text[:most]}{_CUT}"
