"""One test for a table of cases that check one promise: as tests of their own, they would cost more than they check."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def _list_arguments(*case: Any) -> str:
    return ", ".join(map(repr, case))


def each(
    cases: Iterable[Any] | Callable[[], Iterable[Any]], name: Callable[..., object] = _list_arguments
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Return a decorator that makes one test of a check: it checks all cases, and names all that fail.

    Args:
        cases: arguments of the check; a tuple is several. A function returns them when the test runs.
        name: returns the name of a case from the same arguments.
    """

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            table = [case if isinstance(case, tuple) else (case,) for case in (cases() if callable(cases) else cases)]
            assert table, "there are no cases"
            failed = [text for case in table if (text := _failure(check, case, name))]
            assert not failed, f"{len(failed)} of {len(table)} cases:\n" + "\n".join(failed)

        test.__name__, test.__qualname__, test.__doc__ = check.__name__, check.__qualname__, check.__doc__
        test.__module__ = check.__module__
        return test

    return decorate


def _failure(check: Callable[..., None], case: tuple[Any, ...], name: Callable[..., object]) -> str:
    """Return the name of a failing case, with error, file and line; an empty text if it does not fail."""
    try:
        check(*case)
    except (Exception, pytest.fail.Exception) as error:
        place = next(frame for frame in traceback.extract_tb(error.__traceback__)[1:])
        return f"{name(*case)}: {place.filename}:{place.lineno}: {type(error).__name__}: {error}"
    return ""
