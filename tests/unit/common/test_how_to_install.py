"""One function names the extra that a missing package is in, and each extra exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    """Yield everything in the shipped modules that is no statement of a text alone, such as a docstring."""
    for side in ("common", "server", "client"):
        for path in sorted((ROOT / side).rglob("*.py")):
            if "fedquilt[" in (text := path.read_text()) or "how_to_install" in text:
                tree = ast.parse(text)
                words = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
                yield from ((path, node) for node in ast.walk(tree) if id(node) not in words)


def test_no_other_module_writes_how_an_extra_is_installed() -> None:
    written = {
        path.name
        for path, node in nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "fedquilt[" in node.value
    }
    assert written == {"errors.py"}


def test_each_named_extra_exists() -> None:
    calls = [ast.unparse(node) for _, node in nodes() if isinstance(node, ast.Call)]
    named = {match[1] for call in calls if (match := re.match(r"how_to_install\w*\('(\w+)'", call))}
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert {"data", "dp", "images"} <= named <= extras
