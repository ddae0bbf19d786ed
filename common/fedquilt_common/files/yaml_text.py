"""Read and write YAML: the scalars of version 1.2, plain data only.

PyYAML reads YAML 1.1, where ``1e-3`` is a string, ``010`` is eight and ``no`` is false. Here scalars follow the core
schema of YAML 1.2.2 (section 10.3), except ``.inf`` and ``.nan``, which no experiment needs and JSON cannot hold.
Duplicate keys, keys that are not strings, tags, aliases and deep nesting are errors.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from fedquilt_common.errors import ExperimentError

MAX_DEPTH = 20
MAX_CHARACTERS = 1 << 20
"""Longest text that a person wrote."""
MAX_OWN_CHARACTERS = 64 << 20
"""Longest text that fedquilt wrote itself, such as the record of thousands of boards."""
_PREFIX = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_PREFIX + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map")}
_CORE_SCHEMA = [
    ("null", r"(?:~|null|Null|NULL|)", [*"~nN", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", [*"tTfF"]),
    ("int", r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)", [*"-+0123456789"]),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
]


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own name for the per-class table
    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Reject aliases and deep nesting before they take memory or time."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not supported; repeat the value", mark)
        if self.depth >= MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels; remove levels", mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None and node.tag not in _PLAIN_TAGS:
            raise yaml.composer.ComposerError(None, None, f"the tag {node.tag} is not supported; remove it", mark)
        return node


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as above; it decides which strings need quotes

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> ScalarNode:
    """Write several lines as a block, where YAML permits it."""
    return dumper.represent_scalar(f"{_PREFIX}str", text, style="|" if "\n" in text else None)


class _OlderDumper(yaml.SafeDumper):
    """Quotes a string that either version takes for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _error_at(node: Node, why: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


def _construct_mapping(loader: _Loader, node: MappingNode) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _error_at(key_node, f"the key {key!r} is not a string; put it in quotes")
        if key in mapping:
            raise _error_at(key_node, f"the key {key!r} occurs twice; keep one of them")
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _construct_integer(loader: _Loader, node: ScalarNode) -> int:
    text = loader.construct_scalar(node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    try:
        return int(text, base)
    except ValueError as error:
        raise _error_at(node, f"{text[:40]!r} is not a whole number, or has too many digits") from error


def _construct_number(loader: _Loader, node: ScalarNode) -> float:
    text = loader.construct_scalar(node)
    try:
        value = float(text)
    except ValueError as error:
        raise _error_at(node, f"{text[:40]!r} is not a number") from error
    if not math.isfinite(value):
        raise _error_at(node, f"{text[:40]!r} is too large a number")
    return value


def _construct_boolean(loader: _Loader, node: ScalarNode) -> bool:
    text = loader.construct_scalar(node).lower()
    if text not in ("true", "false"):
        raise _error_at(node, f"{text[:40]!r} is neither true nor false")
    return text == "true"


for _kind, _pattern, _first in _CORE_SCHEMA:
    for _class in (_Loader, _Dumper, _OlderDumper):
        _class.add_implicit_resolver(_PREFIX + _kind, re.compile(f"^{_pattern}$"), _first)
for _dumper in (_Dumper, _OlderDumper):
    _dumper.add_representer(str, _represent_text)
_Loader.add_constructor(_PREFIX + "map", _construct_mapping)
_Loader.add_constructor(_PREFIX + "int", _construct_integer)
_Loader.add_constructor(_PREFIX + "float", _construct_number)
_Loader.add_constructor(_PREFIX + "bool", _construct_boolean)


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        ExperimentError: the file is missing, is a folder, is not UTF-8, or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ExperimentError(f"{path}: no such file; check the path") from error
    except IsADirectoryError as error:
        raise ExperimentError(f"{path}: is a folder; give a file in it") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path}: is not text in UTF-8 (byte {error.start}); save it as UTF-8") from error
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}; check the path and its permissions") from error


def load_yaml(text: str, source: str, limit: int = MAX_CHARACTERS) -> Any:
    """Parse YAML.

    Args:
        text: YAML.
        source: the text's name, for messages.
        limit: most characters of the text.

    Returns:
        Dicts with string keys, lists, strings, numbers, booleans and None.

    Raises:
        ExperimentError: the text is not valid; the message has line and column.
    """
    if len(text) > limit:
        raise ExperimentError(f"{source}: is longer than {limit} characters; check that it is the right file")
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader with fewer powers
    except yaml.MarkedYAMLError as error:
        raise ExperimentError(f"{source}{_position(error)}: {_reason(error)}") from error
    except yaml.YAMLError as error:
        raise ExperimentError(f"{source}: is not YAML: {error}; check that it is a text file in UTF-8") from error


def dump_yaml_1_1(data: Any) -> str:
    """Write YAML for programs that read YAML 1.1, such as cloud-init and Ansible: a text ``no`` is quoted there.

    ``load_yaml`` reads the same strings there.
    """
    text: str = yaml.dump(data, Dumper=_OlderDumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def dump_yaml(data: Any) -> str:
    """Write plain data as YAML, with keys in their order; ``load_yaml`` returns an equal value."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def _position(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _reason(error: yaml.MarkedYAMLError) -> str:
    parts = [part for part in (error.context, error.problem) if part]
    return ", ".join(parts) or "is not YAML"
