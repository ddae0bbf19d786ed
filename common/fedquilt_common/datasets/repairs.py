"""Notes on what a data set's files needed before they could be used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_PLURAL: Final = re.compile(r"\b[a-z]+s\b")
_SINGULAR: Final = {"boxes": "box", "activities": "activity"}
"""Nouns that lose more than an s."""


def describe_repairs(repairs: Mapping[str, int]) -> list[str]:
    """Return a note for each kind of repair that was needed, in alphabetical order.

    Args:
        repairs: how many of each kind, such as ``empty files left out``: its first noun in the plural.
    """
    return [f"{count} {what if count != 1 else _for_one(what)}" for what, count in sorted(repairs.items()) if count]


def describe_absent_classes(labels: NDArray[np.int64], names: Sequence[str]) -> list[str]:
    """Return a note for each class without training samples.

    Args:
        labels: of the training samples, shape (n,), from 0.
        names: of the classes.
    """
    return [f"there is no sample of {name} to train on" for label, name in enumerate(names) if label not in labels]


def _for_one(what: str) -> str:
    """Return a kind of repair with its first noun in the singular."""
    return _PLURAL.sub(lambda noun: _SINGULAR.get(noun[0], noun[0][:-1]), what, count=1)
