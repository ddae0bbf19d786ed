"""One function names the extra that a missing package is in, and each extra exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
SUFFIXES = frozenset({".md", ".yaml", ".yml", ".py", ".sh", ".toml", ".j2"})


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


def extras() -> set[str]:
    return set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))


def test_each_named_extra_exists() -> None:
    calls = [ast.unparse(node) for _, node in nodes() if isinstance(node, ast.Call)]
    named = {match[1] for call in calls if (match := re.match(r"how_to_install\w*\('(\w+)'", call))}
    assert {"data", "dp", "images"} <= named <= extras()


def test_pages_experiments_and_tests_name_extras_that_exist() -> None:
    folders = ("docs", "deploy", "examples", "benchmarks", "scripts", "tests", ".ci")
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile", ROOT / "pyproject.toml"]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    found = re.findall(r"fedquilt\[([\w,]+)\]", "\n".join(path.read_text("utf-8") for path in files))
    named = {extra for one in found for extra in one.split(",")}
    assert {"mdns", "vision", "deploy"} <= named <= extras()
