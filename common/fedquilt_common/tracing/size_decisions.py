"""Finds out whether forward decides by sizes that a sub-model changes, such as a layer's ``in_channels``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from torch import nn

_COMPARISONS: Final = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__")
_ARITHMETIC: Final = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__",
    "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__pow__", "__rpow__", "__neg__",
)  # fmt: skip


class WatchedSize(int):
    """A size that calls ``note`` when code compares it, or a number that is computed from it."""

    note: Callable[[], None]
    __hash__ = int.__hash__


class WatchedRatio(float):
    """A number that is computed from watched sizes by a division."""

    note: Callable[[], None]
    __hash__ = float.__hash__


def _watch(value: Any, note: Callable[[], None]) -> Any:
    """Return a watched number in place of a plain one."""
    kind = {int: WatchedSize, float: WatchedRatio}.get(type(value))
    if kind is None:
        return value
    made = kind(value)
    made.note = note
    return made


def _comparing(original: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Any, *other: Any) -> Any:
        self.note()
        return original(self, *other)

    return compare


def _computing(name: str, plain: type) -> Callable[..., Any]:
    def compute(self: Any, *other: Any) -> Any:
        result = getattr(plain, name)(self, *other)
        if result is NotImplemented and plain is int:  # with a float
            result = getattr(float, name)(float(self), *other)
        return _watch(result, self.note)

    return compute


for _kind, _plain in ((WatchedSize, int), (WatchedRatio, float)):
    for _name in _COMPARISONS:
        setattr(_kind, _name, _comparing(getattr(_plain, _name)))
    for _name in _ARITHMETIC:
        setattr(_kind, _name, _computing(_name, _plain))


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
            watched = tuple(_watch(one, note) for one in value) if isinstance(value, tuple) else _watch(value, note)
            setattr(owner, key[1], watched)
        yield compared
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _noting(compared: set[tuple[str, str]], key: tuple[str, str]) -> Callable[[], None]:
    return lambda: compared.add(key)
