"""Calls an algorithm's optional methods, and reports one that fails or returns something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from fedquilt_common.errors import AlgorithmError, FedquiltError


def call_hook(algorithm: object, name: str, *arguments: Any) -> Any:
    """Return what an algorithm's optional method returns.

    Raises:
        AlgorithmError: the method raises an error. Those of fedquilt pass unchanged.
    """
    try:
        return getattr(algorithm, name)(*arguments)
    except FedquiltError:
        raise
    except (Exception, SystemExit) as error:
        raise _error(algorithm, name, _describe(error, type(algorithm).__module__)) from error


def _describe(error: Exception | SystemExit, module: str) -> str:
    # The machine imports this package and must stay without I/O, so what reads files is imported here.
    from fedquilt_common.error_messages import RESUME
    from fedquilt_common.user_imports import describe_error, describe_sys_exit, find_place, package_of

    package = package_of(module)
    if isinstance(error, SystemExit):
        return f": the code {describe_sys_exit(error, package)}, and {RESUME}"
    return f" ({find_place(error, package)}): {describe_error(error)}. Correct it, and {RESUME}"


def ask_problem(algorithm: object, name: str, *arguments: Any, default: str = "") -> str:
    """Return the problem that an algorithm's optional method finds, as a text; empty if there is none.

    Args:
        algorithm: without that method, ``default`` is returned.
        name: of the method.
        arguments: which it takes.
        default: the problem of an algorithm without that method.

    Raises:
        AlgorithmError: the method raises an error, or does not return a text.
    """
    found = _ask(algorithm, name, arguments, default, _is_text, "the problem as a text, or an empty text")
    return str(found)


def ask_number(algorithm: object, name: str, *arguments: Any, default: float) -> float:
    """Return the number that an algorithm's optional method returns, else ``default``; otherwise as ``ask_problem``.

    Raises:
        AlgorithmError: the method raises an error, or returns no finite number of at least 0.
    """
    return float(_ask(algorithm, name, arguments, default, _is_weight, "a finite number of at least 0"))


def ask_count(algorithm: object, name: str, *arguments: Any, default: int) -> int:
    """Return the whole number that an algorithm's optional method returns, else ``default``; as ``ask_problem``.

    Raises:
        AlgorithmError: the method raises an error, or returns no whole number of at least 1.
    """
    return int(_ask(algorithm, name, arguments, default, _is_count, "a whole number of at least 1"))


def find_override(algorithm: object, promises: Collection[str], methods: Collection[str]) -> tuple[str, str] | None:
    """Find a method with which an algorithm's class replaces one of which a base class declares something.

    A declaration is about the methods of its class and those above it, not about the new method.

    Args:
        algorithm: an instance of the class.
        promises: names of the class attributes and methods that hold what is declared.
        methods: names of the methods for which it is declared.

    Returns:
        The method, such as ``Median.merge``, and the name of the class that declares; None if nothing is replaced, or
        if the instance declares it.
    """
    kinds = type(algorithm).__mro__
    holder = next((place for place, kind in enumerate(kinds) if not vars(kind).keys().isdisjoint(promises)), None)
    if holder is None or not getattr(algorithm, "__dict__", {}).keys().isdisjoint(promises):
        return None
    if isinstance(vars(kinds[holder]).get("declares"), property):  # it answers for the instance
        return None
    found = (f"{kind.__name__}.{name}" for kind in kinds[:holder] for name in methods if name in vars(kind))
    return next(((method, kinds[holder].__name__) for method in found), None)


def doubt_promise(algorithm: object, promises: Collection[str], methods: Collection[str], doubt: str) -> str:
    """Return why what a base class declares may not hold for an algorithm; empty if it does.

    Args:
        algorithm: as ``find_override`` takes it, and the next two.
        promises: names of what declares.
        methods: names of the methods for which it is declared.
        doubt: what a method of the class's own may do, as in "may read single replies".
    """
    if (override := find_override(algorithm, promises, methods)) is None:
        return ""
    (method, base), own = override, type(algorithm).__name__
    return (
        f"{method} {doubt}, and {own} has no `declares` of its own. If it does not, write `declares = {base}.declares` "
        f"into {own}"
    )


def _ask(
    algorithm: object, name: str, arguments: Any, default: Any, is_right: Callable[[object], bool], advice: str
) -> Any:
    if getattr(algorithm, name, None) is None:
        return default
    found = call_hook(algorithm, name, *arguments)
    if is_right(found):
        return found
    from fedquilt_common.algorithm_api.array_types import shorten  # needs numpy, which an idle agent does not load

    raise _error(algorithm, name, f" returned {shorten(found)}; return {advice}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_weight(value: object) -> bool:
    try:
        number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]  # to find out
    except (TypeError, ValueError):
        return False
    return math.isfinite(number) and number >= 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 1


def _error(algorithm: object, name: str, text: str) -> AlgorithmError:
    kind = type(algorithm)
    return AlgorithmError(f"{kind.__module__}:{kind.__qualname__}.{name}{text}")
