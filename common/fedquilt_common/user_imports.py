"""From a name in an experiment file to the object it stands for.

Nothing is imported because a stranger's experiment says so: a user's own ``package:factory`` needs the
consent of whoever runs the process.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from fedquilt_common.errors import ForbiddenImportError, UnknownNameError

_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def is_own(name: str) -> bool:
    """Whether ``name`` is a user's own ``package:factory`` and no name of fedquilt's."""
    return ":" in name


def suggest(name: str, known: Iterable[str]) -> str:
    """Advice for a wrong name: the nearest known one, or all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"choose one of: {', '.join(choices)}" if choices else "nothing is allowed here"


def resolve(name: str, table: Mapping[str, str], what: str, allowed: Collection[str] = ()) -> Callable[..., Any]:
    """The callable that ``name`` stands for.

    ``table`` maps short names to ``module:attribute``; ``what`` says what is named ("model"). A ``name``
    with a colon is a user's own and is imported only if its top-level package, or ``*``, is in ``allowed``.
    Raises ForbiddenImportError where it is not, UnknownNameError where there is no such thing.
    """
    if not is_own(name):
        if name not in table:
            raise UnknownNameError(f"{what} '{name}' is unknown; {suggest(name, table)}")
        return _load(table[name], f"{what} '{name}'")
    if not _OWN.fullmatch(name):
        raise UnknownNameError(f"{what} '{name}' is not of the form package.module:factory; correct the name")
    _check_allowed(name, what, allowed)
    return _load(name, f"{what} '{name}'")


def _check_allowed(name: str, what: str, allowed: Collection[str]) -> None:
    package = re.split(r"[.:]", name, maxsplit=1)[0]
    if package not in allowed and "*" not in allowed:
        raise ForbiddenImportError(
            f"{what} '{name}' would run code of the package '{package}', which is not allowed here; "
            f"if you trust it, start this program with --allow-import {package}"
        )


def _load(target: str, label: str) -> Callable[..., Any]:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # A user's module can raise anything at all while it is imported.
        reason = f"{type(error).__name__}: {error}"
        raise UnknownNameError(
            f"{label}: importing {module_name} failed with {reason}; "
            "install the package where this program runs, or correct the name"
        ) from error
    return _callable(module, module_name, attribute, label)


def _callable(module: Any, module_name: str, attribute: str, label: str) -> Callable[..., Any]:
    try:
        found = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UnknownNameError(f"{label}: {module_name} has no '{attribute}'; {suggest(attribute, public)}") from error
    if not callable(found):
        raise UnknownNameError(f"{label}: {module_name}:{attribute} cannot be called; name a function or class")
    loaded: Callable[..., Any] = found
    return loaded
