"""What varies in a sweep: axes, their values, and the combinations of these. Pure functions."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment_file import Override
from fedquilt_common.user_imports import suggest
from fedquilt_server.sweep.manifest import AxisValue, Settings, is_one_value

LONGEST_FOLDER: Final = 120
"""Characters of a run folder's name; file systems allow 255 bytes, and some programs a whole path of 260."""
_AXIS_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.+@-]")
"""Characters that some file system forbids, or that separate the parts of a folder's name."""
_DIGEST_LENGTH: Final = 6


@dataclass(frozen=True)
class Choice:
    """One value of an axis, or its label, and what it sets in the experiment."""

    value: AxisValue
    overrides: tuple[Override, ...]


@dataclass(frozen=True)
class SweepAxis:
    """A key that varies, or a free name whose labels each set several keys; ``place`` is where it is written."""

    name: str
    choices: tuple[Choice, ...]
    place: str
    labelled: bool = False

    @property
    def values(self) -> list[AxisValue]:
        """The values, or the labels."""
        return [choice.value for choice in self.choices]

    @property
    def overrides(self) -> list[Override]:
        """What the values set, one after the other."""
        return [override for choice in self.choices for override in choice.overrides]


@dataclass(frozen=True)
class Variation:
    """One combination of values."""

    settings: Settings
    overrides: tuple[Override, ...]

    @property
    def label(self) -> str:
        """The settings as text, such as ``seed=1, algorithm.name=fedavg``."""
        return ", ".join(f"{axis}={value_text(value)}" for axis, value in self.settings.items())

    @property
    def folder(self) -> str:
        """A folder's name that every file system allows, such as ``seed=1,algorithm.name=fedavg``.

        A name that had to be changed or cut ends with a digest of the settings, so that it stays distinct.
        """
        plain = ",".join(f"{axis}={value_text(value)}" for axis, value in self.settings.items())
        safe = ",".join(f"{axis}={_UNSAFE.sub('-', value_text(value))}" for axis, value in self.settings.items())
        safe = safe.rstrip(".")  # Windows drops a dot at the end
        if safe == plain and len(safe) <= LONGEST_FOLDER:
            return safe
        digest = hashlib.sha256(json.dumps(dict(self.settings)).encode()).hexdigest()[:_DIGEST_LENGTH]
        return f"{safe[: LONGEST_FOLDER - _DIGEST_LENGTH - 1]}-{digest}"


def value_text(value: AxisValue) -> str:
    """Return a value as YAML writes it, without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def read_axis(name: str, raw: Any, place: str) -> SweepAxis:
    """Make an axis of a list of values, or of a mapping from labels to the keys that each one sets.

    Args:
        name: an experiment's key, such as ``training.lr`` or ``algorithm``; with labels, any name.
        raw: the list or the mapping.
        place: where it is written, for messages.

    Raises:
        ExperimentError: it is neither, it is empty, or a value occurs twice.
    """
    if not _AXIS_NAME.fullmatch(name):
        raise ExperimentError(f"{place}: {name!r} cannot name an axis; use letters, digits and the characters _ . -")
    if isinstance(raw, Mapping):
        choices = [_labelled_choice(str(label), keys, f"{place}.{label}") for label, keys in raw.items()]
    elif isinstance(raw, list | tuple | range):
        choices = [_choice(name, value, place) for value in raw]
    else:
        raise ExperimentError(f"{place}: must be a list of values, or labels with the keys that each one sets")
    if not choices:
        raise ExperimentError(f"{place}: has no value; give at least one")
    if twice := _first_repeated(value_text(choice.value) for choice in choices):
        raise ExperimentError(f"{place}: {twice} occurs twice; keep one of them")
    return SweepAxis(name, tuple(choices), place, isinstance(raw, Mapping))


def select(axis: SweepAxis, values: Sequence[Any], place: str) -> SweepAxis:
    """Keep some labels of an axis, in their new order.

    Raises:
        ExperimentError: the axis has no such label, or one occurs twice.
    """
    known = {value_text(choice.value): choice for choice in axis.choices}
    labels = [value_text(value) if is_one_value(value) else repr(value) for value in values]
    for label in labels:
        if label not in known:
            raise ExperimentError(f"{place}: {axis.name} has no label {label!r}; {suggest(label, known)}")
    return read_axis(axis.name, {label: _keys_of(known[label]) for label in labels}, place)


def combine(axes: Sequence[SweepAxis], excluded: Sequence[Mapping[str, Sequence[AxisValue]]] = ()) -> list[Variation]:
    """Return every combination of the axes' values. The last axis varies fastest.

    Args:
        axes: what varies.
        excluded: for some axes, values; a combination that has one of each is left out.
    """
    found = []
    for choices in itertools.product(*(axis.choices for axis in axes)):
        settings = {axis.name: choice.value for axis, choice in zip(axes, choices, strict=True)}
        if not any(_matches(settings, values) for values in excluded):
            found.append(Variation(settings, tuple(itertools.chain(*(choice.overrides for choice in choices)))))
    return found


def _matches(settings: Settings, values: Mapping[str, Sequence[AxisValue]]) -> bool:
    return all(
        value_text(settings[axis]) in map(value_text, allowed) for axis, allowed in values.items() if axis in settings
    )


def _choice(key: str, value: Any, place: str) -> Choice:
    shown: AxisValue = value if is_one_value(value) else _label_of(value)
    return Choice(shown, (Override(key, value, f"{place}={value_text(shown)}"),))


def _label_of(value: Any) -> str:
    """Name a section or a list: ``{name: fedprox, mu: 0.1}`` becomes ``fedprox-mu-0.1``, a list its JSON."""
    if not isinstance(value, Mapping):
        return json.dumps(value, default=str)
    texts = {
        key: value_text(item) if is_one_value(item) else json.dumps(item, default=str) for key, item in value.items()
    }
    return "-".join(text if key == "name" else f"{key}-{text}" for key, text in texts.items())


def _labelled_choice(label: str, keys: Any, place: str) -> Choice:
    if not isinstance(keys, Mapping) or not label:
        raise ExperimentError(f"{place}: must hold the keys that it sets, such as {{training.lr: 0.05}}")
    return Choice(label, tuple(Override(str(key), value, place) for key, value in keys.items()))


def _keys_of(choice: Choice) -> dict[str, Any]:
    return {override.path: override.value for override in choice.overrides}


def _first_repeated(texts: Iterable[str]) -> str:
    seen = set[str]()
    for text in texts:
        if text in seen:
            return text
        seen.add(text)
    return ""
