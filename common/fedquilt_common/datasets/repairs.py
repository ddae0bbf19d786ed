"""Notes on what a data set's files needed before they could be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_PLURAL: Final = re.compile(r"\b[a-z]+s\b")
_SINGULAR: Final = {"boxes": "box", "activities": "activity"}
"""Nouns that lose more than an s."""


def describe_repairs(repairs: Mapping[str, int]) -> list[str]:
    """Return a note for each kind of repair that was needed, in alphabetical order.

    Args:
        repairs: how many of each kind, such as ``empty files left out``: its first noun in the plural.
    """
    return [f"{count} {what if count != 1 else _for_one(what)}" for what, count in sorted(repairs.items()) if count]


def _for_one(what: str) -> str:
    """Return a kind of repair with its first noun in the singular."""
    return _PLURAL.sub(lambda noun: _SINGULAR.get(noun[0], noun[0][:-1]), what, count=1)
