"""How long a text in a message can be."""

from __future__ import annotations

import re
from typing import Final

LONGEST_TEXT: Final = 500
"""Most characters of a text in a message."""
_CUT: Final = " ..."
_PATH_AT_END: Final = re.compile(r"\s\S{0,200}/\S{0,200}\Z")


def shorten_text(text: str) -> str:
    """Cut a text to what a message can hold, and mark the cut.

    A path at the cut is left out: half of it is another folder. A path with spaces is taken for several.
    """
    if len(text) <= LONGEST_TEXT:
        return text
    most = LONGEST_TEXT - len(_CUT)
    path = _PATH_AT_END.search(text, 0, most + 1)
    return f"{text[: path.start() if path else most]}{_CUT}"
