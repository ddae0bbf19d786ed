"""Docstrings: complete for everything that an author of a plugin sees, and with shapes wherever arrays pass."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.tables import each

from fedquilt_common import types
from fedquilt_common.algorithm_api import algorithm as algorithm_module
from fedquilt_common.algorithm_api import learner as learner_module
from fedquilt_common.algorithm_api import records as records_module
from fedquilt_common.algorithm_api.algorithm import Algorithm
from fedquilt_common.wire import transport

SEAM = (algorithm_module, learner_module, records_module, types, transport)
DOCUMENTED = (
    "aggregation", "algorithm_api", "algorithms", "augment", "datasets.files", "datasets.partition", "datasets.public",
    "datasets.tables", "models", "submodels", "tracing", "training", "types",
)  # fmt: skip
"""The rooms of ``fedquilt_common`` in which every public function on arrays states their shapes."""
ARRAYS = re.compile(r"\b(NDArray|Arrays|Examples|Tensor|Logits)\b")
SHAPE = re.compile(r"\bshapes?\b|\((n|m)\b", re.IGNORECASE)
INHERITED = frozenset(name for name in vars(Algorithm) if not name.startswith("_"))
"""Methods that every algorithm has; the protocol documents them."""


@dataclasses.dataclass(frozen=True)
class Item:
    """A function or method, with its place."""

    place: str
    function: Callable[..., Any]
    text: str

    @property
    def arguments(self) -> list[str]:
        return [name for name in inspect.signature(self.function).parameters if name not in ("self", "cls")]

    @property
    def has_arrays(self) -> bool:
        return any(ARRAYS.search(str(annotation)) for annotation in inspect.get_annotations(self.function).values())


def functions(module: ModuleType) -> Iterator[Item]:
    """The public functions of a module, and the public methods and properties of its public classes."""
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(member):
            yield Item(f"{module.__name__}.{name}", member, member.__doc__ or "")
        elif inspect.isclass(member):
            yield from methods(member)


def methods(kind: type) -> Iterator[Item]:
    for name, member in vars(kind).items():
        function = next((f for part in ("fget", "func", "__func__") if (f := getattr(member, part, None))), member)
        if inspect.isfunction(function) and (not name.startswith("_") or is_own_call(kind, name)):
            text = inspect.getdoc(getattr(kind, name)) or ""
            yield Item(f"{kind.__module__}.{kind.__qualname__}.{name}", function, text)


def is_own_call(kind: type, name: str) -> bool:
    """Whether it is the ``__call__`` of a protocol such as ``Loss``."""
    return name == "__call__" and "Protocol" in {base.__name__ for base in kind.__bases__}


def section(text: str, title: str) -> str:
    """The lines below ``Args:`` or another title of a docstring, up to the next line that is not indented."""
    found = re.search(rf"^{title}:\n((?:[ \t]+.*\n?|\n)*)", inspect.cleandoc(text), re.MULTILINE)
    return found[1] if found else ""


def seam_functions() -> list[Item]:
    return [item for module in SEAM for item in functions(module)]


def seam_records() -> list[type]:
    own = [(module, kind) for module in SEAM for kind in vars(module).values() if inspect.isclass(kind)]
    return [kind for module, kind in own if kind.__module__ == module.__name__ and dataclasses.is_dataclass(kind)]


def rooms() -> Iterator[ModuleType]:
    """Every module of the documented rooms."""
    for room in DOCUMENTED:
        module = importlib.import_module(f"fedquilt_common.{room}")
        yield module
        for inner in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
            yield importlib.import_module(inner.name)


def test_the_seam_has_what_it_should_have() -> None:
    places = {item.place.rpartition("fedquilt_common.")[2] for item in seam_functions()}
    assert {"algorithm_api.learner.Loss.__call__", "algorithm_api.algorithm.ServerContext.select",
            "wire.transport.Transport.max_payload", "types.Examples.take"} <= places  # fmt: skip
    assert {"Task", "Reply", "State", "Declaration", "Examples", "Dataset", "Profile", "TrainingResult",
            "TrainingPhase", "MqttMessage", "Will"} <= {kind.__name__ for kind in seam_records()}  # fmt: skip


@each(seam_functions, lambda item: item.place)
def test_a_member_of_the_seam_is_documented(item: Item) -> None:
    assert item.text, "has no docstring"
    arguments = section(item.text, "Args")
    missing = [name for name in item.arguments if not re.search(rf"^ +\**{name}: \S", arguments, re.MULTILINE)]
    assert not missing, "Args lacks these"
    assert SHAPE.search(item.text) or not item.has_arrays, "takes or returns arrays, but names no shape"


@each(seam_records, lambda kind: kind.__name__)
def test_a_record_of_the_seam_is_documented_field_by_field(kind: Any) -> None:
    attributes = section(kind.__doc__ or "", "Attributes")
    for field in dataclasses.fields(kind):
        own = re.search(rf"^( +){field.name}: (\S.*(?:\n\1 +\S.*)*)", attributes, re.MULTILINE)
        assert own, f"Attributes lacks '{field.name}'"
        is_array = ARRAYS.search(str(field.type))
        assert SHAPE.search(own[2]) or not is_array, f"'{field.name}' holds arrays, but names no shape"


@pytest.mark.parametrize("module", SEAM, ids=lambda module: module.__name__)
def test_a_name_of_a_type_is_explained_in_the_next_line(module: ModuleType) -> None:
    body = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
    for statement, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            assert explained, f"{statement.targets[0].id} has no text below it"


@each(rooms, lambda module: module.__name__)
def test_public_functions_on_arrays_state_shapes(module: ModuleType) -> None:
    for item in functions(module):
        name = item.place.rpartition(".")[2]
        if item.has_arrays and name not in INHERITED:
            assert SHAPE.search(item.text), f"{item.place} takes or returns arrays, but its docstring names no shape"


def test_a_docstring_without_a_shape_would_be_seen() -> None:
    assert SHAPE.search("logits of shape (4, 2)")
    assert SHAPE.search("labels, (n, classes)")
    assert not SHAPE.search("the reshaped arrays (none of them new)")
    assert section(
        "Does it.\n\n    Args:\n        x: one.\n          more.\n\n    Returns:\n        y: two.\n", "Args"
    ) == ("    x: one.\n      more.\n\n")
