"""A type name stands for one thing in the whole project."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.test_layering import sources


def type_names(tree: ast.Module) -> Iterator[str]:
    """Classes anywhere in a module, and type aliases at its top level, without their underscore."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id.lstrip("_")
            if name[:1].isupper() and not name.isupper() and any(letter.islower() for letter in name):
                yield name


def test_a_type_name_exists_once() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for module, path in sources():
        for name in type_names(ast.parse(path.read_text())):
            found[name].add(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}
