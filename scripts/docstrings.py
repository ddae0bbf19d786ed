"""Parses docstrings in Google style."""

from __future__ import annotations

import inspect
import re
from typing import Final

_SECTIONS: Final = ("Args:", "Attributes:", "Returns:", "Yields:", "Raises:", "Example:", "Examples:")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring in Google style.

    Returns:
        The words before and between its sections, as Markdown, and the description of each argument.
    """
    words: list[str] = []
    arguments: dict[str, str] = {}
    section = name = ""
    for line in inspect.cleandoc(text).replace("``", "`").splitlines():
        if line.strip() in _SECTIONS and not line.startswith(" "):
            section = line
        elif line and not line.startswith(" "):
            section = ""
        start = re.match(r"    \*{0,2}(\w+)(?: \([^)]*\))?: (.*)", line)
        if not section:
            words.append(line)
        elif section not in ("Args:", "Attributes:"):
            continue
        elif start:
            name = start[1]
            arguments[name] = start[2]
        elif line.startswith("     "):
            arguments[name] += " " + line.strip()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(words)).strip(), arguments
