"""A type name stands for one thing in the whole project."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from tests.test_layering import sources

CLASS = re.compile(r"^[ \t]*class[ \t]+_*(\w+)[ \t]*[(:\[]", re.MULTILINE)
ASSIGNED = re.compile(r"^_*([A-Z]\w*)[ \t]*=(?!=)", re.MULTILINE)


def type_names(source: str) -> set[str]:
    """Classes anywhere in a module, and type aliases at its top level, without their underscore."""
    aliases = {name for name in ASSIGNED.findall(source) if not name.isupper() and any(map(str.islower, name))}
    return {*CLASS.findall(source), *aliases}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("@final\nclass _Own(Base[int]):\n    class Inner: ...\n", {"Own", "Inner"}),
        ("def make():\n    class Hidden:\n        Value = 3\n", {"Hidden"}),
        ("Pair = tuple[int, int]\n_Names=list[str]\n", {"Pair", "Names"}),
        ("LIMIT = 3\nA = B = 4\nplace = Place()\nPlace == place\n    class of things,\n", set()),
    ],
)
def test_a_type_name_would_be_seen(source: str, names: set[str]) -> None:
    assert type_names(source) == names


def test_a_type_name_exists_once() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for module, path in sources():
        for name in type_names(path.read_text()):
            found[name].add(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}
