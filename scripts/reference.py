#!/usr/bin/env python3
"""Writes docs/reference/ from the code: commands, experiment keys, algorithms, models, messages and more.

python scripts/reference.py           (`make docs` runs it)
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from command_list import Parameter, list_commands
from docstrings import read_docstring
from environment_variables import list_variables
from markdown_tables import code, sentence, table
from pydantic import BaseModel, TypeAdapter

from fedquilt_common import errors
from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.catalogue.entries import Kind, list_entries
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.models import MODELS
from fedquilt_common.rejections import PATTERNS
from fedquilt_common.user_imports import resolve
from fedquilt_common.wire import data_messages, messages
from fedquilt_common.wire.message_base import WireMessage
from fedquilt_common.wire.topics import ROOT, TOPIC_RULES
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.sweep.manifest import PublishedFigure, PublishedTable, SweepManifest, SweptRun
from fedquilt_server.sweep.sweep_file import SweepFile
from fedquilt_server.web.metrics import SnapshotCollector

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "reference"
Schema = Mapping[str, Any]
"""A JSON schema, as pydantic derives it from a model."""


# Commands


def cli_page() -> Iterator[str]:
    """Yield the page of all commands."""
    yield from ("# Commands", "")
    yield "All commands of `fedquilt`, with their options and defaults. `fedquilt COMMAND --help` prints the same."
    yield "[Exit codes](exit-codes.md) lists how a command can end."
    for command in list_commands():
        places = [one.names[0] for one in command.parameters if not one.is_option]
        needed = [f"{one.names[0]} VALUE" for one in command.parameters if one.is_option and one.required]
        usage = " ".join(["fedquilt", command.name, *needed, "[OPTIONS]", *places])
        yield from ("", f"## `fedquilt {command.name}`", "", command.help, "", "```text", usage, "```")
        rows = [[", ".join(map(code, p.names)), p.value, _default_of(p), p.help] for p in command.parameters]
        yield from table(("option", "value", "default", "meaning"), rows)


def _default_of(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    none = parameter.default is None or parameter.default is False or parameter.default == ""
    return "" if none else code(parameter.default)


# Models of pydantic


_FORMATS: Final = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


def type_words(schema: Schema) -> str:
    """Return the type that a JSON schema describes, in plain words."""
    if {one.get("type") for one in schema.get("anyOf", ())} == {*_FORMATS, "null"}:
        return "value"  # of an axis
    if "enum" in schema or "const" in schema:
        return ", ".join(map(code, schema.get("enum", [schema.get("const")])))
    if "$ref" in schema:
        return f"[{_ref(schema)}](#{_ref(schema).lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys("size" if _is_size(one) else type_words(one) for one in _choices(schema)))
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])}: {type_words(schema['prefixItems'][0])}"
    if schema.get("type") == "array":
        return f"list of: {type_words(schema.get('items', {}))}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"object of: {type_words(values)}" if isinstance(values, Mapping) else "object"
    return "null" if schema.get("type") == "null" else _FORMATS.get(str(schema.get("type")), "any")


def _choices(schema: Schema) -> list[Schema]:
    return [schema] if _is_size(schema) else list(schema["anyOf"])


def _is_size(schema: Schema) -> bool:
    """Whether it is pydantic's schema of a ByteSize: a text such as 256KiB, or a number of bytes."""
    return [one.get("type") for one in schema.get("anyOf", [])] == ["string", "integer"] and "pattern" in str(schema)


_LIMITS: Final = {
    "minimum": "at least {}", "ge": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}",
    "le": "at most {}", "exclusiveMaximum": "below {}", "maxLength": "at most {} characters",
    "minItems": "at least {} items", "maxItems": "at most {} items",
}  # fmt: skip
_PATTERNS: Final = {
    **PATTERNS,
    r"^[^/\\.][^/\\]*$": "one part of a path, does not begin with a dot",
    "^[0-9a-f]{16}$": "16 hexadecimal digits",
}


def limits_words(schema: Schema) -> str:
    """Return the limits that a JSON schema sets for a value, in plain words."""
    choices = [] if _is_size(schema) else schema.get("anyOf", [])
    plain = next((one for one in choices if one.get("type") != "null"), schema)
    if "prefixItems" in plain:
        return limits_words(plain["prefixItems"][0])
    number = _bytes if _is_size(plain) else _number
    found = [words.format(number(plain[key])) for key, words in _LIMITS.items() if key in plain]
    if "pattern" in plain:
        found.append(_PATTERNS.get(plain["pattern"], f"matches `{plain['pattern']}`"))
    return ", ".join(found)


def _number(value: float) -> str:
    if value == 1 << 63:
        return "2^63"
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _bytes(value: int) -> str:
    units = ((1 << 20, "MiB"), (1 << 10, "KiB"))
    return next((f"{value // unit}{name}" for unit, name in units if value % unit == 0), f"{value} bytes")


def _ref(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _section_of(schema: Schema, schemas: Mapping[str, Schema]) -> tuple[str, Schema] | None:
    """Return what follows a key's name (``.N`` for a list) and the schema of its section, if it has one."""
    for one in [schema, *schema.get("anyOf", [])]:
        if "$ref" in one:
            return "", schemas[_ref(one)]
        if "$ref" in one.get("items", {}):
            return ".N", schemas[_ref(one["items"])]
    return None


def _default(name: str, schema: Schema, parent: Schema) -> str:
    if name in parent.get("required", ()):
        return "required"
    if _is_size(schema):
        return f"`{_bytes(schema['default'])}`"
    return code(schema["default"]) if "default" in schema else "empty"


# Experiment files


_FILLED: Final = {
    "participation.per_round": "`data.clients`",
    "participation.quorum": "`participation.per_round`",
}
"""Defaults that the schema does not have, because other keys determine them."""
_GUIDES: Final = {
    "speedup": "soft-labels.md#narrow-and-lossy-links",
    "data.set": "reference/datasets.md",
    "data.partition.scheme": "experiments.md#partition-schemes",
    "data.holdout": "personal.md#two-accuracies",
    "data.public": "soft-labels.md#the-public-set",
    "model.name": "reference/models.md",
    "algorithm.name": "reference/algorithms.md",
    "participation.shortfall": "machine.md#policies",
    "participation.ratio": "experiments.md#who-takes-part",
    "training.schedule": "experiments.md#learning-rates",
    "training.sampling": "experiments.md#balanced-batches",
    "training.precision": "experiments.md#precision",
    "wire.chunk": "protocol.md#chunks",
    "fleet.N.budget": "slicing.md#how-much-memory",
    "fleet.N.link": "soft-labels.md#narrow-and-lossy-links",
    "fleet.N.variants": "soft-labels.md#models-and-optimisers-of-their-own",
}
"""Where the documentation explains a key."""


def experiment_page() -> Iterator[str]:
    """Yield the page of all keys of an experiment file."""
    schema = Experiment.model_json_schema()
    yield from ("# Experiment keys", "")
    yield "All keys of [an experiment file](../experiments.md), with their types, defaults and limits. A size is a"
    yield "whole number of bytes, or a text such as `256KiB` (1024) or `256KB` (1000). `N` is the number of an item of"
    yield "a list, from 0."
    yield from table(("key", "type", "default", "limits", "meaning"), _keys(schema, schema["$defs"], ""))


def _keys(section: Schema, schemas: Mapping[str, Schema], prefix: str) -> Iterator[Sequence[str]]:
    _, meanings = read_docstring(section.get("description", ""))
    for name, schema in section.get("properties", {}).items():
        key, inner = prefix + name, _section_of(schema, schemas)
        guide = f" ([more](../{_GUIDES[key]}))".replace("../reference/", "") if key in _GUIDES else ""
        meaning = sentence(meanings.get(name, "")) + guide
        required = name in section.get("required", ())
        if inner is None:
            default = _FILLED.get(key, _default(name, schema, section))
            yield f"`{key}`", type_words(schema), default, limits_words(schema), meaning
            continue
        suffix, found = inner
        yield f"**`{key}`**", "list of sections" if suffix else "section", "required" if required else "", "", meaning
        if key not in ("fleet.N.privacy", "fleet.N.variants"):  # their keys and defaults are the experiment's
            yield from _keys(found, schemas, f"{key}{suffix}.")


# Algorithms, models and data sets


_CATALOGUE: Final[dict[Kind, str]] = {
    "algorithm": "The algorithms that `algorithm.name` can choose. Their fields are keys of the section `algorithm`.",
    "model": "The models that `model.name` can choose. Their parameters are keys of the section `model`.",
    "data set": "The data sets that `data.set` can choose. `FEDQUILT_DATA` names the folder with their files.",
}


def _catalogue_page(title: str, kind: Kind) -> Iterator[str]:
    yield from (f"# {title}", "", _CATALOGUE[kind])
    for entry in list_entries(kind):
        words, own = read_docstring(entry.description)
        meanings = {**_inherited(kind, entry.name), **own}
        hints = _hints(kind, entry.name)
        yield from ("", f"## `{entry.name}`", "", words)
        rows = [
            [
                f"`{field.name}`",
                type_words(TypeAdapter(hints[field.name]).json_schema()),
                "required" if field.required else code(field.default),
                sentence(meanings.get(field.name, "")),
            ]
            for field in entry.fields
        ]
        yield from table(("key", "type", "default", "meaning"), rows)


def _hints(kind: Kind, name: str) -> dict[str, Any]:
    """Return the types of an algorithm's fields or of a model's parameters; a data set has none."""
    if kind == "data set":
        return {}
    hints = typing.get_type_hints(ALGORITHMS[name] if kind == "algorithm" else resolve(name, MODELS, "model", ()))
    return {key.removesuffix("_"): hint for key, hint in hints.items()}


def _inherited(kind: Kind, name: str) -> dict[str, str]:
    """Return the descriptions of fields that an algorithm inherits."""
    found: dict[str, str] = {}
    for base in reversed(ALGORITHMS[name].__mro__ if kind == "algorithm" else ()):
        found |= read_docstring(base.__doc__ or "")[1]
    return found


# Sweeps


def sweeps_page() -> Iterator[str]:
    """Yield the page of sweep files and ``sweep.json``."""
    yield from ("# Sweep files and sweep.json", "")
    yield "The keys of [a sweep file](../sweeps.md#the-sweep-file), and the fields of `sweep.json` in the folder of a"
    yield "sweep. An axis is what varies; its value is one number, text, `true`, `false` or `null`."
    yield from _model_section(SweepFile, "##")
    for kind in (SweepManifest, SweptRun, PublishedTable, PublishedFigure):
        yield from _model_section(kind, "##")


# Exit codes, messages, topics, metrics


def exit_codes_page() -> Iterator[str]:
    """Yield the page of exit codes."""
    yield from ("# Exit codes", "")
    yield "`fedquilt` ends with one of these codes, so that a script can react to the cause of an error. In Python, the"
    yield "errors are classes in `fedquilt_common.errors`."
    yield from ("", "```sh", 'fedquilt doctor || echo "exit code $?"', "```")
    named: dict[int, list[str]] = {}
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.FedquiltError):
            named.setdefault(kind.exit_code, []).append(f"`{kind.__name__}`")
    rows = [[str(number), words, ", ".join(named.get(number, ()))] for number, words in errors.EXIT_CODES.items()]
    yield from table(("code", "meaning", "errors in Python"), rows)


def environment_page() -> Iterator[str]:
    """Yield the page of environment variables."""
    yield from ("# Environment variables", "")
    yield "An option of a command takes precedence over its variable. Docker Compose has [further"
    yield "ones](../experiments.md#with-docker-compose)."
    yield from table(("variable", "read by", "meaning"), [[f"`{one.name}`", *one.words] for one in list_variables()])


def messages_page() -> Iterator[str]:
    """Yield the page of control messages and their parts."""
    kinds = [one for one in {**vars(messages), **vars(data_messages)}.values() if inspect.isclass(one)]
    whole = [one for one in kinds if issubclass(one, WireMessage) and one is not WireMessage]
    parts = [one for one in kinds if issubclass(one, BaseModel) and one not in (*whole, *WireMessage.__mro__)]
    yield from ("# MQTT messages", "")
    yield "The control messages, which are JSON. [The protocol](../protocol.md#control-messages) explains when they are"
    yield "sent, and [the topics](topics.md) lists where. `v` is the version of the protocol."
    for kind in whole:
        yield from _model_section(kind, "##")
    yield from ("", "## Parts of messages")
    for part in parts:
        yield from _model_section(part, "###")


def _model_section(kind: type[BaseModel], heading: str) -> Iterator[str]:
    schema = kind.model_json_schema()
    words, meanings = read_docstring(kind.__doc__ or "")
    yield from ("", f"{heading} {kind.__name__}", "", words)
    names = {field.alias or name: name for name, field in kind.model_fields.items()}
    rows = [
        [
            f"`{key}`",
            type_words(one),
            _default(key, one, schema),
            limits_words(one),
            sentence(meanings.get(names[key], "")),
        ]
        for key, one in schema["properties"].items()
    ]
    yield from table(("field", "type", "default", "limits", "meaning"), rows)


def topics_page() -> Iterator[str]:
    """Yield the page of topics."""
    yield from ("# Topics", "")
    yield f"All topics are below `{ROOT}/<federation>/`. [The protocol](../protocol.md#name-space) explains them."
    rows = [[f"`{rule.suffix}`", rule.writer, "yes" if rule.retained else "no"] for rule in TOPIC_RULES.values()]
    yield from table(("topic", "written by", "retained"), rows)


def metrics_page() -> Iterator[str]:
    """Yield the page of Prometheus metrics."""
    yield from ("# Prometheus metrics", "")
    yield "The status page serves these metrics at `/metrics`. A value that is not known has no sample."
    suffixes = {"counter": "_total", "info": "_info"}
    rows = [
        [f"`{one.name}{suffixes.get(one.type, '')}`", one.type, ", ".join(map(code, _labels(one))), one.documentation]
        for one in SnapshotCollector(StatusStore(Snapshot(run="r"))).collect()
    ]
    yield from table(("metric", "type", "labels", "meaning"), rows)


def _labels(metric: Any) -> Sequence[str]:
    return list(getattr(metric, "_labelnames", ())) or sorted({key for one in metric.samples for key in one.labels})


PAGES: Final[dict[str, Callable[[], Iterable[str]]]] = {
    "cli.md": cli_page,
    "experiment.md": experiment_page,
    "sweeps.md": sweeps_page,
    "algorithms.md": lambda: _catalogue_page("Algorithms", "algorithm"),
    "models.md": lambda: _catalogue_page("Models", "model"),
    "datasets.md": lambda: _catalogue_page("Data sets", "data set"),
    "exit-codes.md": exit_codes_page,
    "environment.md": environment_page,
    "messages.md": messages_page,
    "topics.md": topics_page,
    "metrics.md": metrics_page,
}
"""Each generated page by its file name."""
_FOOTER: Final = "*`make docs` writes this page from the code.*"


def pages() -> dict[str, str]:
    """Return the text of each generated page by its file name."""
    return {name: "\n".join([*page(), "", _FOOTER]) + "\n" for name, page in PAGES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
