"""Conditional requests (RFC 9110, section 13.1.2): whether a visitor already has what it asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_TAG: Final = re.compile(r'(?:W/)?"([^"]*)"')


def has_current(if_none_match: Iterable[str], tag: str) -> bool:
    """Return whether the headers ``If-None-Match`` name an entity tag, by weak comparison.

    Args:
        if_none_match: the values of these headers: each a list of tags, or ``*`` for any tag.
        tag: the current tag, without quotes.
    """
    return any(value.strip() == "*" or tag in _TAG.findall(value) for value in if_none_match)
