"""Lists the commands of ``fedquilt`` and their options, as their functions declare them."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo

from fedquilt_common.cli import COMMANDS


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a command.

    Args:
        names: an option with its opposite, such as ``--page`` and ``--no-page``, or an argument's name in capitals.
        value: the type and limits of its value, in words; empty for a switch.
        default: its default value, None if it has none.
        required: whether the command needs it.
        help: its help text, in one line.
    """

    names: tuple[str, ...]
    value: str
    default: Any
    required: bool
    help: str

    @property
    def is_option(self) -> bool:
        """Whether it is an option, not an argument."""
        return self.names[0].startswith("-")


@dataclass(frozen=True)
class Command:
    """A command without the word ``fedquilt``, such as ``simulate`` or ``bench round``."""

    name: str
    help: str
    parameters: tuple[Parameter, ...]


def list_commands() -> list[Command]:
    """Return all commands in the order of ``fedquilt --help``, those of a group after each other."""
    return [
        command
        for name, (module, _) in COMMANDS.items()
        for command in _commands_of(importlib.import_module(module).app, "")
        if command.name.split()[0] == name
    ]


def _commands_of(app: typer.Typer, prefix: str) -> Iterator[Command]:
    for info in app.registered_commands:
        if info.callback is not None:
            name = info.name or info.callback.__name__.replace("_", "-")
            words = inspect.cleandoc(info.help or info.callback.__doc__ or "")
            yield Command(prefix + name, words, tuple(_parameters_of(info.callback)))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands_of(group.typer_instance, f"{prefix}{group.name} ")


def _parameters_of(callback: Callable[..., Any]) -> Iterator[Parameter]:
    for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
        kind, info = typing.get_args(parameter.annotation)[:2]  # Annotated[kind, typer.Option(...)]
        required = parameter.default is inspect.Parameter.empty
        default = None if required else parameter.default
        variable = f" Else read from the environment variable `{info.envvar}`." if info.envvar else ""
        words = " ".join((info.help or "").split()) + variable
        yield Parameter(_names(name, kind, info), _value_words(kind, info), default, required, words)


def _names(name: str, kind: Any, info: Any) -> tuple[str, ...]:
    if isinstance(info, ArgumentInfo):
        return (info.metavar or name.upper(),)
    # In Annotated, typer keeps the first declared name in the place of the default.
    declared = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    if declared:
        return tuple(part for text in declared for part in text.split("/"))
    word = name.replace("_", "-")
    return (f"--{word}", f"--no-{word}") if kind is bool else (f"--{word}",)


def _value_words(kind: Any, info: Any) -> str:
    kinds = [member for member in (typing.get_args(kind) or (kind,)) if member is not type(None)]
    plain = typing.get_args(kinds[0])[0] if typing.get_origin(kinds[0]) is list else kinds[0]
    words = {bool: "", str: "text", int: "whole number", float: "number", Path: "path"}.get(plain, "text")
    return ", ".join(part for part in (words, _range_words(info.min, info.max)) if part)


def _range_words(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f"at most {most:,}"
    return f"at least {least:,}" if most is None else f"{least:,} to {most:,}"
