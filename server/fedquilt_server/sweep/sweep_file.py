"""Read a sweep: from a sweep file, or from an experiment and the axes of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.section import Section
from fedquilt_common.experiment_file import error_line
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_common.rejections import list_problems
from fedquilt_common.user_imports import suggest
from fedquilt_common.wire.message_base import Name
from fedquilt_server.sweep.axes import SweepAxis, read_axis, select, value_text
from fedquilt_server.sweep.manifest import AxisValue, PublishedTable, is_one_value

_HOW_TO_VARY: Final = "write it as dotted.path=value,value, such as seed=1,2,3"
_OWN_KEYS: Final = ("experiment", "vary")
"""Keys that only a sweep file has."""


class SweepFile(Section):
    """A sweep file.

    Args:
        name: name of the sweep; its folder is `runs/<name>` unless you give `--out`.
        experiment: path of an experiment file, relative to the sweep file; or an experiment's keys.
        vary: what varies. A key of the experiment with its values: `seed: [1, 2, 3]`. Or a name of your own with
            labels, each of which sets some keys: `method: {plain: {algorithm.name: fedavg}}`.
        exclude: combinations to leave out, each with a value, or a list of values, for some of the axes.
        published: figures of a paper; they go into `sweep.json` for the report.
    """

    name: Name
    experiment: Any
    vary: dict[str, Any] = Field(default_factory=dict)
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    published: list[PublishedTable] = Field(default_factory=list)


@dataclass(frozen=True)
class SweepSource:
    """A sweep as it is written; its experiments are not checked yet.

    Args:
        name: name of the sweep.
        base: the experiment's keys; every run changes some of them.
        base_place: where they are written, for messages.
        axes: what varies.
        exclude: for some axes, values; a combination that has one of each is left out.
        published: figures of a paper.
        added: names of the axes that the command line adds to those of the file.
    """

    name: str
    base: Any
    base_place: str
    axes: tuple[SweepAxis, ...] = ()
    exclude: tuple[Mapping[str, Sequence[AxisValue]], ...] = ()
    published: tuple[PublishedTable, ...] = ()
    added: tuple[str, ...] = ()


def read_source(path: Path) -> SweepSource:
    """Read a sweep file, or an experiment file, which has no axes yet.

    Raises:
        ExperimentError: a file cannot be read, or a key of the sweep file is wrong.
    """
    return parse_source(read_text(path), path)


def parse_source(text: str, path: Path) -> SweepSource:
    """Read the ``text`` of a sweep file or an experiment file.

    Args:
        text: YAML.
        path: its file; the path of the sweep's experiment is relative to it.

    Raises:
        ExperimentError: as ``read_source``.
    """
    raw = load_yaml(text, str(path))
    if not isinstance(raw, Mapping) or not any(key in raw for key in _OWN_KEYS):
        return source_of(raw, str(path), path.stem)
    file = _parse(raw, str(path))
    base, place = _read_base(file.experiment, path)
    axes = tuple(read_axis(name, values, f"{path}: vary.{name}") for name, values in file.vary.items())
    source = SweepSource(file.name, base, place, axes, published=tuple(file.published))
    problems = [*_published_problems(file.published, axes)]
    if problems:
        raise ExperimentError("\n".join(f"{path}: {problem}" for problem in problems))
    return replace(source, exclude=tuple(_read_exclusions(file.exclude, axes, str(path))))


def source_of(raw: Any, place: str, name: str) -> SweepSource:
    """Return a sweep without axes over an experiment's keys.

    Args:
        raw: the keys.
        place: where they are written, for messages.
        name: the sweep's name if the experiment has none.
    """
    given = raw.get("name") if isinstance(raw, Mapping) else None
    return SweepSource(f"{given if isinstance(given, str) and given else name}-sweep", raw, place)


def vary(source: SweepSource, axes: Mapping[str, Any], place: str) -> SweepSource:
    """Add axes, or replace those of the same name; an axis with labels keeps the labels that are given.

    Args:
        source: the sweep.
        axes: the values of each axis, as in a sweep file.
        place: where they are written, for messages.

    Raises:
        ExperimentError: an axis is not valid.
    """
    result = {axis.name: axis for axis in source.axes}
    added = tuple(name for name in axes if name not in result)
    for name, values in axes.items():
        before, where = result.get(name), f"{place}{name}"
        if before is not None and before.labelled and not isinstance(values, Mapping):
            result[name] = select(before, values, where)
        else:
            result[name] = read_axis(name, values, where)
    return replace(source, axes=tuple(result.values()), added=source.added + added)


def parse_axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read options such as ``seed=1,2,3``; each value is YAML.

    Raises:
        ExperimentError: an option is not of this form, or names a key again.
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        label = f"--vary {text}"
        if not equals or not name.strip():
            raise ExperimentError(f"{label}: {_HOW_TO_VARY}")
        if name.strip() in axes:
            raise ExperimentError(f"{label}: {name.strip()} is given twice; write all its values in one --vary")
        axes[name.strip()] = load_yaml(f"[{values}]", label)
    return axes


def _parse(raw: Mapping[str, Any], place: str) -> SweepFile:
    try:
        return SweepFile.model_validate(raw)
    except ValidationError as error:
        lines = [error_line(problem, place) for problem in list_problems(error, SweepFile)]
        raise ExperimentError("\n".join(lines)) from None


def _read_base(experiment: Any, path: Path) -> tuple[Any, str]:
    """Return the experiment's keys, and where they are written."""
    if isinstance(experiment, Mapping):
        return experiment, f"{path}: experiment"
    if not isinstance(experiment, str) or not experiment:
        raise ExperimentError(f"{path}: experiment: must be the path of an experiment file, or an experiment's keys")
    file = path.parent / experiment
    return load_yaml(read_text(file), str(file)), str(file)


def _read_exclusions(
    raw: Sequence[Mapping[str, Any]], axes: Sequence[SweepAxis], place: str
) -> Iterator[dict[str, Sequence[AxisValue]]]:
    for index, rule in enumerate(raw):
        where = f"{place}: exclude.{index}"
        if not rule:
            raise ExperimentError(f"{where}: is empty, and would leave out every run; remove it")
        yield {name: _read_excluded(name, values, axes, where) for name, values in rule.items()}


def _read_excluded(name: str, raw: Any, axes: Sequence[SweepAxis], where: str) -> Sequence[AxisValue]:
    values = raw if isinstance(raw, list) else [raw]
    if not all(map(is_one_value, values)):
        raise ExperimentError(f"{where}.{name}: must be a value of the axis, or a list of its values")
    if problem := _case_problem(name, values, axes):
        raise ExperimentError(f"{where}.{problem}")
    return values


def _published_problems(tables: Sequence[PublishedTable], axes: Sequence[SweepAxis]) -> Iterator[str]:
    for number, table in enumerate(tables):
        for index, figure in enumerate(table.figures):
            for name, value in figure.case.items():
                if problem := _case_problem(name, [value], axes):
                    yield f"published.{number}.figures.{index}.case.{problem}"


def _case_problem(name: str, values: Sequence[AxisValue], axes: Sequence[SweepAxis]) -> str:
    """Return what is wrong with values of the axis ``name``; empty if it has them all."""
    known = {axis.name: [value_text(value) for value in axis.values] for axis in axes}
    if name not in known:
        return f"{name}: does not vary; {suggest(name, known)}"
    wrong = next((value for value in map(value_text, values) if value not in known[name]), None)
    return "" if wrong is None else f"{name}: {wrong!r} is not one of its values; {suggest(wrong, known[name])}"
