"""Reads the tables of algorithms, models and data sets, and the docstrings behind their names.

Models and data sets are read from their source files, so that nothing heavy is imported.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, Literal

from fedquilt_common.errors import UnknownNameError
from fedquilt_common.user_imports import suggest

Kind = Literal["algorithm", "model", "data set"]
GIVEN: Final = ("input_shape", "classes", "folder")
"""Parameters that fedquilt passes to a factory itself."""
_AUTHORS = r"[A-Z][\w-]+(?:(?:, | and )[A-Z][\w-]+)*(?: et al\.)?"
_PAPERS: Final = (
    re.compile(rf'({_AUTHORS}, "[^"]+", [^.;:]*?\b(?:19|20)\d\d)\b'),
    re.compile(rf'\(({_AUTHORS},[^()"]*?\b(?:19|20)\d\d)\)'),
)
_SENTENCE: Final = re.compile(r"(.+?)(?<!et al)\.(?=\s|$)")


@dataclass(frozen=True)
class EntryField:
    """A key that stands beside ``name`` in the experiment. ``default`` is a JSON value; None if ``required``."""

    name: str
    type: str
    default: Any = None
    required: bool = False


@dataclass(frozen=True)
class Entry:
    """One name of the catalogue.

    Attributes:
        name: as the experiment file has it.
        summary: one sentence.
        paper: authors, title, venue and year; "" where none is cited.
        fields: the keys that it takes.
        description: its documentation in full.
    """

    name: str
    summary: str
    paper: str
    fields: tuple[EntryField, ...]
    description: str


def list_entries(kind: Kind) -> list[Entry]:
    """Return all entries of a kind, in the order of their table."""
    if kind == "algorithm":
        return list(_algorithms())
    from fedquilt_common.datasets import DATASETS
    from fedquilt_common.models import MODELS

    table = MODELS if kind == "model" else DATASETS
    return [_from_source(name, target) for name, target in table.items()]


def find_entry(kind: Kind, name: str) -> Entry:
    """Return one entry.

    Raises:
        UnknownNameError: no entry has this name.
    """
    entries = {entry.name: entry for entry in list_entries(kind)}
    if name not in entries:
        raise UnknownNameError(f"{kind} '{name}' is unknown; {suggest(name, entries)}")
    return entries[name]


def _algorithms() -> Iterator[Entry]:
    from fedquilt_common.algorithms import ALGORITHMS

    for name, kind in ALGORITHMS.items():
        words = cleandoc(sys.modules[kind.__module__].__doc__ or "")
        fields = tuple(_dataclass_field(field) for field in dataclasses.fields(kind) if field.init)
        yield _entry(name, words, words, fields, cleandoc(kind.__doc__ or ""))


def _dataclass_field(field: dataclasses.Field[Any]) -> EntryField:
    name = field.name.removesuffix("_")
    if field.default_factory is not dataclasses.MISSING:
        return EntryField(name, str(field.type), field.default_factory())
    if field.default is dataclasses.MISSING:
        return EntryField(name, str(field.type), required=True)
    return EntryField(name, str(field.type), field.default)


def _from_source(name: str, target: str) -> Entry:
    """The entry of ``module:function``."""
    module, _, attribute = target.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UnknownNameError(f"'{name}' is in the module {module}, which is not installed; install fedquilt again")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == attribute)
    words, own = ast.get_docstring(tree) or "", ast.get_docstring(function) or ""
    usual = attribute in ("build", "load")
    fields = tuple(_parameters(function, _constants(tree)))
    return _entry(name, words if usual else own, words, fields, own)


def _entry(name: str, summary: str, words: str, fields: tuple[EntryField, ...], own: str) -> Entry:
    """The entry whose module has the docstring ``words`` and whose class or function has ``own``."""
    paper = _paper(words)
    description = "\n\n".join(part for part in (words, own) if part)
    return Entry(name, _summary(summary, paper), paper, fields, description)


def _parameters(function: ast.FunctionDef, constants: Mapping[str, Any]) -> Iterator[EntryField]:
    places = function.args.args
    defaults = [None] * (len(places) - len(function.args.defaults)) + list(function.args.defaults)
    for place, default in zip(places, defaults, strict=True):
        kind = ast.unparse(place.annotation) if place.annotation else ""
        if place.arg in GIVEN:
            continue
        if default is None:
            yield EntryField(place.arg, kind, required=True)
        else:
            yield EntryField(place.arg, kind, _value(default, constants))


def _constants(tree: ast.Module) -> dict[str, Any]:
    """The module's names for plain values."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue  # computed, so no default that a reader can type
    return found


def _value(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _summary(words: str, paper: str) -> str:
    """The first sentence, without its full stop and without the paper in brackets, which has a place of its own."""
    text = " ".join(words.split())
    match = _SENTENCE.match(text)
    sentence = match[1] if match else text
    return re.sub(rf" \({re.escape(paper)}[^()]*\)", "", sentence) if paper else sentence


def _paper(words: str) -> str:
    text = " ".join(words.split())
    return next((match[1] for pattern in _PAPERS if (match := pattern.search(text))), "")
