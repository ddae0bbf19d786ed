"""Finds out whether forward decides by sizes that a sub-model changes, such as a layer's ``in_channels``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from torch import nn

_COMPARISONS: Final = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__")
_ARITHMETIC: Final = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__floordiv__", "__rfloordiv__", "__mod__",
    "__rmod__", "__neg__",
)  # fmt: skip


class WatchedSize(int):
    """A size that calls ``note`` when code compares it, or a number that is computed from it."""

    note: Callable[[], None]
    __hash__ = int.__hash__

    @classmethod
    def of(cls, size: int, note: Callable[[], None]) -> WatchedSize:
        """Watch a size."""
        made = cls(size)
        made.note = note
        return made


def _comparing(name: str) -> Callable[..., Any]:
    original = getattr(int, name)

    def compare(self: WatchedSize, *other: Any) -> Any:
        self.note()
        return original(self, *other)

    return compare


def _computing(name: str) -> Callable[..., Any]:
    original = getattr(int, name)

    def compute(self: WatchedSize, *other: Any) -> Any:
        result = original(self, *other)
        return WatchedSize.of(result, self.note) if type(result) is int else result

    return compute


for _name in _COMPARISONS:
    setattr(WatchedSize, _name, _comparing(_name))
for _name in _ARITHMETIC:
    setattr(WatchedSize, _name, _computing(_name))


@contextlib.contextmanager
def watch_sizes(module: nn.Module, attributes: Iterable[tuple[str, str]]) -> Iterator[set[tuple[str, str]]]:
    """Yield a set to which the attributes are added that code compares while the block runs.

    Args:
        module: the model.
        attributes: (name of a layer, name of its attribute); those that are no sizes are not watched.
    """
    compared, before = set[tuple[str, str]](), list[tuple[nn.Module, str, Any]]()
    try:
        for key in attributes:
            owner = module.get_submodule(key[0])
            value, note = getattr(owner, key[1]), _noting(compared, key)
            before.append((owner, key[1], value))
            if type(value) is int:
                setattr(owner, key[1], WatchedSize.of(value, note))
            elif isinstance(value, tuple):
                setattr(owner, key[1], tuple(WatchedSize.of(one, note) for one in value))
        yield compared
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _noting(compared: set[tuple[str, str]], key: tuple[str, str]) -> Callable[[], None]:
    return lambda: compared.add(key)
