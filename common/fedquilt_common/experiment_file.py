"""Read an experiment file and return its ``Experiment``, or raise one error that lists every problem."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedquilt_common.datasets.data_file import pin_data_files
from fedquilt_common.errors import ExperimentError, FedquiltError
from fedquilt_common.experiment.data_section import OWN
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.section import MOST
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_common.rejections import Problem, explain_unknown_key, list_problems
from fedquilt_common.user_imports import is_user_import, suggest

_LONGEST_VALUE = 60
_HOW_TO_OVERRIDE = "write it as dotted.path=value, such as training.lr=0.05"


@dataclass(frozen=True)
class Override:
    """A new value for the key at a dotted ``path``. Error messages name the override by ``label``."""

    path: str
    value: Any
    label: str


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment from a YAML file.

    Args:
        path: the file.
        overrides: changes to its keys, such as ``training.lr=0.05``.

    Raises:
        ExperimentError: the file cannot be read, or keys are wrong; lists every problem, one line each.
    """
    return parse_experiment(read_text(path), str(path), overrides)


def parse_experiment(text: str, source: str, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment from YAML ``text``. Error messages name the text by ``source``.

    Raises:
        ExperimentError: as ``load_experiment``.
    """
    return make_experiment(load_yaml(text, source), source, [parse_override(text) for text in overrides])


def make_experiment(raw: Any, source: str, overrides: Sequence[Override] = ()) -> Experiment:
    """Check the keys in ``raw``, changed by ``overrides``, and return their experiment.

    Raises:
        ExperimentError: lists every problem, one line each.
    """
    if not isinstance(raw, Mapping):
        content = "is empty" if raw is None else f"holds {_describe_kind(raw)}, not keys"
        raise ExperimentError(f"{source}: {content}; write keys such as name, data, model, algorithm")
    return _check(_apply_overrides(raw, source, overrides), source, overrides)


def _describe_kind(raw: Any) -> str:
    return "a list" if isinstance(raw, list | tuple) else "text" if isinstance(raw, str) else "a single value"


def _check(raw: dict[str, Any], source: str, overrides: Sequence[Override]) -> Experiment:
    problems: list[Problem] = []
    experiment = None
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        problems += list_problems(error, Experiment)
    problems += _name_problems(raw)
    if experiment is None or problems:
        raise ExperimentError("\n".join(error_line(problem, source, overrides) for problem in problems))
    return pin_data_files(experiment)


def parse_override(text: str) -> Override:
    """Read ``training.lr=0.05``; the value is YAML.

    Raises:
        ExperimentError: it is not of this form.
    """
    path, equals, value = text.partition("=")
    label = f"--set {text}"
    if not equals:
        raise ExperimentError(f"{label}: {_HOW_TO_OVERRIDE}")
    return Override(path.strip(), load_yaml(value, label), label)


def explain_override_path(path: str, raw: Any) -> str:
    """Return what is wrong with the dotted path of an override, whatever its value; empty if its key exists.

    Args:
        path: of the override.
        raw: the experiment's keys; they name the algorithm whose fields exist. Without a known one, any field does.
    """
    from fedquilt_common.algorithms import ALGORITHMS, DIAGNOSTICS

    first, *fields = keys = path.split(".")
    if not all(keys):
        return _HOW_TO_OVERRIDE
    kind = (ALGORITHMS | DIAGNOSTICS).get(str(_value_at(raw, "algorithm.name")))
    if first == "algorithm" and fields and fields[0] != "name" and kind is not None:
        return _explain_unknown_field(fields[0], _fields_of(kind))
    return explain_unknown_key(path, Experiment)


def changed_keys(raw: Any, overrides: Sequence[Override]) -> dict[str, Any]:
    """Return the keys, dotted, to which overrides give another value than ``raw`` has, with the new value."""
    last = {override.path: override.value for override in overrides}
    return {path: value for path, value in last.items() if value != _value_at(raw, path)}


def _apply_overrides(raw: Mapping[str, Any], source: str, overrides: Sequence[Override]) -> dict[str, Any]:
    """Return a copy of ``raw`` with every override applied. List items are numbered from 0."""
    result: dict[str, Any] = _plain_copy(dict(raw), source)
    for override in overrides:
        keys = override.path.split(".")
        if not all(keys):
            raise ExperimentError(f"{override.label}: {_HOW_TO_OVERRIDE}")
        _set_at(result, keys, _plain_copy(override.value, override.label), override.label)
    return result


def _plain_copy(value: Any, label: str) -> Any:
    """Return a deep copy of ``value``, with numbers of numpy as Python's.

    Raises:
        ExperimentError: it holds a type that YAML does not have.
    """
    try:
        return json.loads(json.dumps(value, default=_to_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ExperimentError(
            f"{label}: {error}; use plain numbers, text, true or false, lists and dictionaries"
        ) from None


def _to_plain(value: Any) -> object:
    """Return a number of numpy as a Python number; numpy itself is not imported for it.

    Raises:
        TypeError: it is none.
    """
    if getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _set_at(root: dict[str, Any], keys: Sequence[str], value: Any, label: str) -> None:
    """Set the value at ``keys``, and add the sections on the way that do not exist."""
    parent: Any = root
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        if isinstance(parent, list):
            index: Any = _list_index(parent, key, label)
        elif isinstance(parent, dict):
            index = key
            if not last and parent.get(key) is None:
                parent[key] = _new_section(keys[: depth + 2], label)
        else:
            path = ".".join(keys[:depth])
            raise ExperimentError(f"{label}: {path} is {_short_repr(parent)}, which has no keys")
        if last:
            parent[index] = value
        else:
            parent = parent[index]


def _new_section(keys: Sequence[str], label: str) -> dict[str, Any]:
    """Return the section that the last of ``keys`` is set in; a list needs its items, so it cannot be made this way."""
    if keys[-1].isdigit():
        path = ".".join(keys[:-1])
        raise ExperimentError(
            f"{label}: the file has no list '{path}' with an item {keys[-1]}; set the whole list: {path}=[...]"
        )
    return {}


def _list_index(items: list[Any], key: str, label: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", key) or int(key) >= len(items):
        raise ExperimentError(f"{label}: '{key}' is not an item of a list of {len(items)}; items count from 0")
    return int(key)


def _name_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Check names and algorithm fields on the raw file, so that one error lists them with all other problems."""
    from fedquilt_common.algorithms import ALGORITHMS, DIAGNOSTICS
    from fedquilt_common.datasets import DATASETS
    from fedquilt_common.models import DIAGNOSTIC_MODELS, MODELS

    for path in ("model", *_variant_models(raw)):
        yield from _unknown_name(raw, path, "name", MODELS | DIAGNOSTIC_MODELS)
    own = {OWN: ""} if _value_at(raw, "data.form") is not None else {}
    for path, known in (("data", DATASETS | own), ("data.public", DATASETS)):
        yield from _unknown_name(raw, path, "set", known)
    algorithms = ALGORITHMS | DIAGNOSTICS
    yield from _unknown_name(raw, "algorithm", "name", algorithms)
    section = raw.get("algorithm")
    if isinstance(section, Mapping):
        fields = {key: value for key, value in section.items() if key != "name"}
        kind = algorithms.get(str(section.get("name")))
        if kind is not None:
            yield from _field_problems(kind, fields)


def _unknown_name(raw: Mapping[str, Any], section: str, key: str, known: Mapping[str, Any]) -> Iterator[Problem]:
    inner = _value_at(raw, section)
    name = inner.get(key) if isinstance(inner, Mapping) else None
    if isinstance(name, str) and name and not is_user_import(name) and name not in known:
        why = f"unknown; {suggest(name, known)} (or package:factory for your own)"
        yield Problem(f"{section}.{key}", name, why)


def _variant_models(raw: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the models of the fleet's variants."""
    for line, inner in enumerate(_as_list(raw.get("fleet"))):
        for number, _ in enumerate(_as_list(_value_at(inner, "variants"))):
            yield f"fleet.{line}.variants.{number}.model"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _value_at(raw: Any, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    for part in path.split("."):
        if isinstance(raw, list) and part.isdigit() and int(part) < len(raw):
            raw = raw[int(part)]
        else:
            raw = raw.get(part) if isinstance(raw, Mapping) else None
    return raw


def _field_problems(kind: type, fields: Mapping[str, Any]) -> Iterator[Problem]:
    from fedquilt_common.algorithms import field_name

    known = _fields_of(kind)
    for key in fields.keys() - set(known):
        yield Problem(f"algorithm.{key}", fields[key], _explain_unknown_field(key, known))
    try:
        # Validate as JSON: only then does strict mode accept a mapping for a dataclass, and only numbers for numbers.
        text = json.dumps({field_name(key): fields[key] for key in known if key in fields})
        yield from _count_problems(_adapter(kind).validate_json(text, strict=True))
    except ValidationError as error:
        yield from (_field_problem(problem, known, fields) for problem in list_problems(error))
    except FedquiltError as error:
        yield _field_named_in(str(error), known, fields)


def _fields_of(kind: type) -> list[str]:
    """Return the keys of an algorithm's fields."""
    return [field.name.removesuffix("_") for field in dataclasses.fields(kind) if field.init]


def _explain_unknown_field(key: str, known: Sequence[str]) -> str:
    """Return what is wrong with the key of an algorithm's field; empty if it is a known one."""
    if key in known:
        return ""
    return f"unknown field; {suggest(key, known) if known else 'this algorithm has no fields; remove it'}"


def _count_problems(algorithm: Any) -> Iterator[Problem]:
    """Check the fields that count epochs, samples, layers and the like: they are the whole numbers."""
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if type(value) is int and value > MOST:
            yield Problem(f"algorithm.{field.name.removesuffix('_')}", value, f"must be at most {MOST:,}")


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Return what validates an algorithm's fields: it takes longer to make than an experiment takes to check."""
    return TypeAdapter(kind)


def _field_problem(problem: Problem, known: Sequence[str], fields: Mapping[str, Any]) -> Problem:
    if not problem.path:
        return _field_named_in(problem.why, known, fields)
    return dataclasses.replace(problem, path=f"algorithm.{problem.path}".removesuffix("_"))


def _field_named_in(message: str, known: Sequence[str], fields: Mapping[str, Any]) -> Problem:
    """Find the field, or the key in it, that ``message`` names first: a dataclass's own check has no location."""
    found = {name: match.start() for name in known if (match := re.search(rf"\b{re.escape(name)}\b", message))}
    if not found:
        return Problem("algorithm", dict(fields), message)
    first = min(found, key=found.__getitem__)
    named = re.match(rf"{re.escape(first)}(\.[\w-]+)+(?= = )", message)
    path = named[0] if named and _value_at(fields, named[0]) is not None else first
    value = _value_at(fields, path)
    return Problem(f"algorithm.{path}", value, message if value is None else _without_value(message, path, value))


def _without_value(message: str, name: str, value: Any) -> str:
    """Return a message without ``name = value: `` at its start; ``error_line`` writes these itself."""
    return message.removeprefix(f"{name} = {value!r}: ").removeprefix(f"{name} = {_as_field(value)!r}: ")


def _as_field(value: Any) -> Any:
    """Return a value as the dataclass may hold it: with floats for whole numbers."""
    if isinstance(value, Mapping):
        return {key: _as_field(inner) for key, inner in value.items()}
    return float(value) if type(value) is int else value


def error_line(problem: Problem, source: str, overrides: Sequence[Override] = ()) -> str:
    """Return the line that names a problem's place, value and reason; the place is an override or ``source``."""
    value = "" if problem.value is None else f" = {_short_repr(problem.value)}"
    return f"{_origin(problem, source, overrides)}: {problem.path}{value}: {problem.why}"


def _origin(problem: Problem, source: str, overrides: Sequence[Override]) -> str:
    """Return the label of the last override that set a part of the value if overrides set all of it, or the file."""
    origins = {_label_of(path, overrides) for path in _leaves(problem.path, problem.value)}
    return source if None in origins else next(one.label for one in reversed(overrides) if one.label in origins)


def _label_of(path: str, overrides: Sequence[Override]) -> str | None:
    above = (override.label for override in reversed(overrides) if f"{path}.".startswith(override.path + "."))
    return next(above, None)


def _leaves(path: str, value: Any) -> Iterator[str]:
    """Yield the paths of the single values in a section and in its own sections, or of a value that is none."""
    if not isinstance(value, Mapping) or not value:
        yield path
        return
    for key, inner in value.items():
        yield from _leaves(f"{path}.{key}", inner)


def _short_repr(value: Any) -> str:
    text = str(value) if isinstance(value, int | float) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
