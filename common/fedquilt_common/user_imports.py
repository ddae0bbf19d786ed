"""Resolve names in an experiment to algorithms, models and data sets.

A name may be a user's own ``package:factory``. It is imported only if the owner of the process has allowed the
package, so that an experiment cannot make a board import other code.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fedquilt_common.errors import ForbiddenImportError, UnknownNameError

_USER_IMPORT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_INSTALLED: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
USER_ERRORS: Final = (Exception, SystemExit)
"""What a user's code can raise. A ``sys.exit`` of it is a mistake; KeyboardInterrupt is a person's Ctrl-C."""


def is_user_import(name: str) -> bool:
    """Whether ``name`` is a user's own ``package:factory``, not a name of fedquilt's."""
    return ":" in name


def package_of(name: object) -> str:
    """Return the top-level package of a module's name or of ``package.module:factory``."""
    return re.split(r"[.:]", str(name), maxsplit=1)[0]


def find_place(error: BaseException, package: str) -> str:
    """Return file and line of an error in a user's code, such as ``bad.py line 38``.

    Args:
        error: was raised and caught.
        package: top-level package of the user; empty if it is not known. If no frame is in it, the last place in code
            that is not installed is returned, or else the last place of all.
    """
    if isinstance(error, SyntaxError) and str(error.filename).endswith(".py"):
        return f"{Path(str(error.filename)).name} line {error.lineno}"
    frames = _frames(error)
    frame, line = (_own_frames(error, package) or [one for one in frames if _is_of_user(one[0])] or frames)[-1]
    return f"{Path(frame.f_code.co_filename).name} line {line}"


def _own_frames(error: BaseException, package: str) -> list[tuple[FrameType, int]]:
    of_cause = _frames(error.__cause__) if error.__cause__ else []
    return [one for one in (*of_cause, *_frames(error)) if package_of(one[0].f_globals.get("__name__")) == package]


def _is_of_user(frame: FrameType) -> bool:
    """Whether a frame is in code that is neither installed nor fedquilt's."""
    is_ours = package_of(frame.f_globals.get("__name__")).startswith("fedquilt")
    return not is_ours and not frame.f_code.co_filename.startswith(("<", *_INSTALLED))


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of a traceback with their lines, without that of ``exit`` and ``quit`` themselves."""
    frames = traceback.walk_tb(error.__traceback__)
    return [one for one in frames if one[0].f_globals.get("__name__") != "_sitebuiltins"]


def is_raised_by(error: BaseException, package: str) -> bool:
    """Whether a function of a user's package, or what it called, raised an error."""
    return bool(_own_frames(error, package))


def print_to_stderr(*, wanted: bool) -> AbstractContextManager[object]:
    """Send what a user's code prints in a ``with`` block to standard error, so that standard output holds JSON alone.

    Args:
        wanted: whether the command prints JSON.
    """
    return redirect_stdout(sys.stderr) if wanted else nullcontext()


def find_package(error: BaseException) -> str:
    """Return the top-level package whose code raised an error; that of the last function in its traceback."""
    frames = _frames(error)
    return package_of(frames[-1][0].f_globals.get("__name__")) if frames else ""


def describe_error(error: BaseException) -> str:
    """Return an error's type and text, such as ``KeyError: 'w'``; the type alone if it has no text."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    is_shared = isinstance(error, ValueError) and "read-only" in str(error)  # numpy's words
    return f"{text}; change a copy: np.array(x)" if is_shared else text


def describe_sys_exit(error: SystemExit, package: str) -> str:
    """Return what a user's code did, and what to do: ``called sys.exit(0) (bad.py line 3); remove that call``.

    Args:
        error: was raised by ``sys.exit`` and caught.
        package: top-level package of the user, as for ``find_place``.
    """
    code = "" if error.code is None else repr(error.code)
    return f"called sys.exit({code}) ({find_place(error, package)}); remove that call"


def suggest(name: str, names: Iterable[str]) -> str:
    """Return advice for a wrong name: the most similar of ``names``, or all of them."""
    choices = sorted(names)
    near = difflib.get_close_matches(name, choices, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"choose one of: {', '.join(choices)}" if choices else "no name is valid here"


def find_parameters(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the parameters that a function takes by keyword, and whether it takes any other keyword.

    A function written in C may have no signature. It counts as one that takes any keyword.
    """
    try:
        accepted = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}, True
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    return {name: parameter for name, parameter in accepted.items() if parameter.kind in kinds}, takes_any


def resolve(name: str, table: Mapping[str, str], what: str, allowed: Collection[str] = ()) -> Callable[..., Any]:
    """Import the callable that ``name`` refers to.

    Args:
        name: a key of ``table``, or a user's own ``package.module:factory``.
        table: ``module:attribute`` by short name.
        what: what ``name`` names, for messages ("model").
        allowed: top-level packages that a user's own name may import; ``*`` allows all.

    Raises:
        ForbiddenImportError: the package is not allowed.
        UnknownNameError: the name has no object, or the object cannot be imported or called.
    """
    if not is_user_import(name):
        if name not in table:
            raise UnknownNameError(f"{what} '{name}' is unknown; {suggest(name, table)}")
        return _load(table[name], f"{what} '{name}'")
    if not _USER_IMPORT.fullmatch(name):
        raise UnknownNameError(f"{what} '{name}' does not have the form package.module:factory; correct the name")
    check_allowed(name, what, allowed)
    return _load(name, f"{what} '{name}'")


def check_allowed(name: str, what: str, allowed: Collection[str]) -> None:
    """Check that a user's own name may be imported.

    Args:
        name: ``package.module:factory``.
        what: what it names, for the message ("model").
        allowed: top-level packages that may be imported; ``*`` allows all.

    Raises:
        ForbiddenImportError: its package is not allowed.
    """
    package = package_of(name)
    if package not in allowed and "*" not in allowed:
        raise ForbiddenImportError(
            f"{what} '{name}' would run code of the package '{package}', which is not allowed here; "
            f"if you trust it, start this program with --allow-import {package}"
        )


def _load(target: str, label: str) -> Callable[..., Any]:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except USER_ERRORS as error:
        raise UnknownNameError(f"{label}: {_import_problem(error, module_name, attribute)}") from error
    return _get_callable(module, module_name, attribute, label)


def _import_problem(error: BaseException, module: str, attribute: str) -> str:
    """Return why a module cannot be imported, where, and what to do."""
    if isinstance(error, SystemExit):
        return f"importing {module} {describe_sys_exit(error, package_of(module))}"
    text = error.msg if isinstance(error, SyntaxError) else error
    reason = f"importing {module} failed with {type(error).__name__}: {text}"
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if missing and f"{module}.".startswith(f"{missing}."):
        file = module.removesuffix(".py")
        advice = "install the package where this program runs, add its folder to PYTHONPATH, or correct the name"
        return f"{reason}; {f'write {file}:{attribute}, without .py' if file != module else advice}"
    advice = f"install {missing} where this program runs, or correct the module" if missing else "correct it"
    return f"{reason} ({find_place(error, package_of(module))}); {advice}"


def _get_callable(module: Any, module_name: str, attribute: str, label: str) -> Callable[..., Any]:
    try:
        value = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        public = [key for key, own in vars(module).items() if callable(own) and not key.startswith("_")]
        raise UnknownNameError(f"{label}: {module_name} has no '{attribute}'; {suggest(attribute, public)}") from error
    if not callable(value):
        raise UnknownNameError(f"{label}: {module_name}:{attribute} is not callable; name a function or class")
    function: Callable[..., Any] = value
    return function
