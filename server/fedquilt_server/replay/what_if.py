"""The settings of a prediction: those of the recorded run, changed by ``--what-if KEY=VALUE``."""

from __future__ import annotations

import contextlib
import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.link import Link, parse_link
from fedquilt_server.replay.measurements import Measurements

ALL_KINDS: Final = ""
MOST_BOARDS: Final = 100_000


@dataclass(frozen=True)
class WhatIf:
    """The settings of the rounds that are predicted.

    Attributes:
        boards: number of boards.
        clients_per_board: clients of each; None: as many as each recorded board has.
        per_round: clients that are asked.
        quorum: replies that are enough after the deadline.
        deadline: seconds of the experiment, as ``participation.deadline``.
        shortfall: what happens at the deadline without the quorum.
        workers: training processes of each board; None: as recorded.
        links: link by kind of board; ``ALL_KINDS`` stands for all that are not named. Empty: as recorded.
        widths: width of the trained sub-models by kind of board, in the same way.
    """

    boards: int
    clients_per_board: int | None
    per_round: int
    quorum: int
    deadline: float
    shortfall: Literal["wait", "replace"]
    workers: int | None = None
    links: Mapping[str, Link] = field(default_factory=dict)
    widths: Mapping[str, float] = field(default_factory=dict)


def recorded_settings(experiment: Experiment, measurements: Measurements) -> WhatIf:
    """Return the settings of the recorded run."""
    part = experiment.participation
    boards = len(measurements.boards)
    return WhatIf(boards, None, part.per_round, part.quorum, part.deadline, part.shortfall)


def parse_what_if(texts: Sequence[str], recorded: WhatIf, speedup: float = 1.0) -> WhatIf:
    """Return the recorded settings with the changes applied.

    More boards ask proportionally more clients, with a quorum in proportion, unless the changes set these numbers.

    Args:
        texts: changes such as ``deadline=30`` or ``boards=100x``.
        recorded: the settings of the recorded run.
        speedup: the experiment's `speedup`; links and deadlines are divided by it.

    Raises:
        ExperimentError: a change is not valid.
    """
    changes = [_parse(text, recorded, speedup) for text in texts]
    _check_once(changes)
    plain = {name: value for name, _, value in changes if name not in _BY_KIND}
    by_kind: dict[str, Any] = {
        field: {kind: value for name, kind, value in changes if name == key} for key, field in _BY_KIND.items()
    }  # fmt: skip
    changed = replace(recorded, **plain, **by_kind)
    per_round, quorum = _in_proportion(plain, changed, recorded)
    return replace(changed, per_round=per_round, quorum=quorum)


def check_kinds(settings: WhatIf, measurements: Measurements) -> None:
    """Check that the run had boards of each kind that a change names.

    Raises:
        ExperimentError: it had none.
    """
    kinds = {board.kind for board in measurements.boards}
    for key, attribute in _BY_KIND.items():
        for kind in sorted(set(getattr(settings, attribute)) - kinds - {ALL_KINDS}):
            raise ExperimentError(
                f"--what-if {key}.{kind}: the run had no such kind of board; choose one of {', '.join(sorted(kinds))}"
            )


def _in_proportion(plain: Mapping[str, Any], changed: WhatIf, recorded: WhatIf) -> tuple[int, int]:
    """Return ``per_round`` and ``quorum`` where they follow from other changes."""
    factor = changed.boards / recorded.boards
    per_round: int = plain.get("per_round", max(1, round(recorded.per_round * factor)))
    follows = max(1, round(recorded.quorum * per_round / recorded.per_round))
    quorum: int = plain.get("quorum", follows)
    if quorum > per_round:
        raise ExperimentError(f"--what-if quorum={quorum}: only {per_round} clients take part (per_round)")
    return per_round, quorum


def _parse(text: str, recorded: WhatIf, speedup: float) -> tuple[str, str, Any]:
    """Return a change's key, the kind of board to which it applies, and its value."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ExperimentError(f"--what-if {text}: write it as KEY=VALUE, such as deadline=30")
    key, _, kind = name.partition(".")
    if key not in _READERS or (kind and key not in _BY_KIND):
        raise ExperimentError(f"--what-if {text}: there is no setting {name!r}; {_hint(name)}")
    found = _READERS[key](value, recorded)
    if found is None:
        raise ExperimentError(f"--what-if {text}: {value!r} is not valid; {_FORMS[key]}")
    return key, kind, replace(found, speedup=speedup) if isinstance(found, Link) else found


def _check_once(changes: Sequence[tuple[str, str, Any]]) -> None:
    """Check that no key is given twice."""
    names = Counter(f"{key}.{kind}" if kind else key for key, kind, _ in changes)
    for name, times in names.items():
        if times > 1:
            raise ExperimentError(f"--what-if {name}: is given {times} times; give one value")


def _hint(name: str) -> str:
    if near := difflib.get_close_matches(name, _READERS, 1):
        return f"did you mean {near[0]!r}?"
    return f"choose one of {', '.join([*_READERS, *(f'{key}.KIND' for key in _BY_KIND)])}"


def _read_count(value: str, _recorded: WhatIf) -> int | None:
    with contextlib.suppress(ValueError):
        count = int(value)
        return count if count >= 1 else None
    return None


def _read_boards(value: str, recorded: WhatIf) -> int | None:
    factor = value.endswith("x")
    with contextlib.suppress(ValueError, OverflowError):
        number = float(value.removesuffix("x"))
        boards = round(number * recorded.boards) if factor else int(number)
        return boards if 1 <= boards <= MOST_BOARDS and (factor or number == boards) else None
    return None


def _read_seconds(value: str, _recorded: WhatIf) -> float | None:
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return seconds if seconds > 0 else None
    return None


def _read_width(value: str, _recorded: WhatIf) -> float | None:
    with contextlib.suppress(ValueError):
        width = float(value)
        return width if 0 < width <= 1 else None
    return None


def _read_shortfall(value: str, _recorded: WhatIf) -> str | None:
    return value if value in ("wait", "replace") else None


_READERS: Final[dict[str, Callable[[str, WhatIf], object]]] = {
    "boards": _read_boards,
    "clients_per_board": _read_count,
    "per_round": _read_count,
    "quorum": _read_count,
    "deadline": _read_seconds,
    "shortfall": _read_shortfall,
    "workers": _read_count,
    "link": lambda value, _recorded: parse_link(value),
    "width": _read_width,
}
_BY_KIND: Final = {"link": "links", "width": "widths"}
"""Keys that may name a kind of board, with their fields of ``WhatIf``."""
_COUNT: Final = "it must be a whole number from 1"
_FORMS: Final = {
    "boards": f"it must be a number from 1 to {MOST_BOARDS}, or a factor such as 100x",
    "clients_per_board": _COUNT,
    "per_round": _COUNT,
    "quorum": _COUNT,
    "deadline": "it must be a number of seconds above 0",
    "shortfall": "it must be wait or replace",
    "workers": _COUNT,
    "width": "it must be above 0 and at most 1",
}
