"""Recorded runs: find the run folders below a folder, and read each one, whatever its state."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from fedquilt_common.error_messages import RESUME
from fedquilt_common.errors import FedquiltError, RunFolderError
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_common.terminal_text import printable
from fedquilt_server.library.quantities import find_impossible, total
from fedquilt_server.runs.journal import peek_meta
from fedquilt_server.runs.result_files import read_result
from fedquilt_server.runs.run_folder import is_in_use
from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.round_times import describe_away, measure_times
from fedquilt_server.status.run_energy import EnergyEstimate, describe_coverage, describe_estimate
from fedquilt_server.status.run_file_names import EXPERIMENT, JOURNAL, RESULT
from fedquilt_server.status.scores import describe_tested

MOST_LEVELS: Final = 6
"""Levels of folders below the named one that are searched for runs."""
MOST_RUNS: Final = 10_000
KILLED: Final = f"the coordinator was killed; {RESUME}"
ESTIMATE_NOTES: Final[dict[EnergyEstimate, str]] = {
    "estimated": "the energy is estimated, not measured",
    "partly estimated": "a part of the energy is estimated, not measured",
}
RecordedStatus = Literal["finished", "running", "interrupted", "failed", "stopped", "damaged", "unknown", "pending"]


@dataclass(frozen=True)
class RecordedRun:
    """A run folder as it was found.

    Attributes:
        folder: the run folder.
        label: a name that no other run of the same list has.
        status: "interrupted" is a run that was killed; "damaged" is a folder whose result cannot be read; "unknown"
            is a run of an earlier version that may not be finished; "pending" is one that a sweep has not started.
        reason: why the run is not finished, or has finished before its last round; empty for others.
        result: the content of ``result.json``; None if it is missing or damaged.
        settings: the experiment as plain data; None if it is not recorded.
        started: Unix time in seconds; None if it is not recorded.
        notes: what else is wrong with the recorded values.
        case: the settings that a sweep gives it, without the seed; empty outside of a sweep.
        damage: which of its files are damaged, and where; each text is also the reason or one of the notes.
    """

    folder: Path
    label: str
    status: RecordedStatus
    reason: str = ""
    result: Result | None = None
    settings: Mapping[str, Any] | None = None
    started: float | None = None
    notes: tuple[str, ...] = ()
    case: Mapping[str, Any] = field(default_factory=dict)
    damage: tuple[str, ...] = ()

    @property
    def rounds(self) -> Sequence[RoundResult]:
        """The finished rounds."""
        return self.result.rounds if self.result else ()

    @property
    def seed(self) -> int | None:
        """The run's seed."""
        return self.result.seed if self.result else None

    @property
    def planned(self) -> int | None:
        """The number of rounds in the experiment."""
        rounds = (self.settings or {}).get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def counts(self) -> bool:
        """Whether the run belongs in a mean: it is finished and has rounds."""
        return self.status == "finished" and bool(self.rounds)


def total_cost(run: RecordedRun, cost: str) -> float | None:
    """Return the sum of a cost over a run's rounds; None if a round does not have it."""
    return total(run.rounds, cost)


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder holds a run, even one without a result yet."""
    return (folder / RESULT).is_file() or (folder / JOURNAL).is_file()


def find_runs(folder: Path, levels: int = MOST_LEVELS) -> list[Path]:
    """Return the run folders in ``folder`` and below it, in alphabetical order.

    Args:
        folder: a run folder, or one that holds runs.
        levels: levels of folders below it that are searched.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: there is no such folder; name a run folder, or one that holds runs")
    found = list[Path]()
    for run in _walk(folder, levels):
        found.append(run)
        if len(found) > MOST_RUNS:
            raise RunFolderError(f"{folder}: holds more than {MOST_RUNS} runs; name a folder with fewer")
    return found


def _walk(folder: Path, levels: int) -> Iterator[Path]:
    if is_run_folder(folder):
        yield folder
        return
    if not levels:
        return
    with contextlib.suppress(OSError):  # a folder that may not be read holds no runs of this user
        inner = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
        for name in inner:
            if not name.startswith("."):
                yield from _walk(folder / name, levels - 1)


def read_run(folder: Path) -> RecordedRun:
    """Read a run folder. What is damaged in it becomes the run's status, reason or notes."""
    damage = list[str]()
    settings, started = _read_settings(folder, damage), _read_start(folder, damage)
    found = RecordedRun(
        folder, folder.name, "damaged", "", None, settings, started, tuple(damage), damage=tuple(damage)
    )
    try:
        result = read_result(folder)
    except RunFolderError as error:
        if (folder / RESULT).exists() or not folder.is_dir():
            return replace(found, reason=str(error), damage=(str(error), *damage))
        status, reason = _unfinished(folder)
        return replace(found, status=status, reason=reason)
    notes = [*damage, *result.warnings, *find_impossible(result.rounds)]
    if settings is not None and (seed := settings.get("seed", result.seed)) != result.seed:
        notes.append(f"{folder / EXPERIMENT} is that of another run: its seed is {seed}, and the run's {result.seed}")
    if tested := describe_tested(result.rounds):
        notes.append(f"the model was tested by {tested}")
    if away := describe_away(measure_times(result.rounds).away):
        notes.append(away)
    if boards := describe_coverage(result.rounds):
        notes.append(f"the energy is that of {boards}; the others report none")
    if estimate := describe_estimate(result.rounds):
        notes.append(ESTIMATE_NOTES[estimate])
    status, reason = _judge(folder, result, settings)
    return replace(found, status=status, reason=reason, result=result, notes=tuple(notes))


def _unfinished(folder: Path) -> tuple[RecordedStatus, str]:
    if is_in_use(folder):
        return "running", "no round is finished yet"
    return "interrupted", f"no round was finished; {RESUME}"


def _judge(folder: Path, result: Result, settings: Mapping[str, Any] | None) -> tuple[RecordedStatus, str]:
    if result.status == "running" and not is_in_use(folder):
        return "interrupted", KILLED
    if result.status == "unknown":
        return _judge_by_rounds(result, settings)
    if result.status == "failed":
        code = "" if result.exit_code is None else f" (exit code {result.exit_code})"
        return "failed", f"{result.reason or 'the reason is not recorded'}{code}"
    return result.status, result.reason


def _judge_by_rounds(result: Result, settings: Mapping[str, Any] | None) -> tuple[RecordedStatus, str]:
    """An earlier version did not record how a run ended: it is finished if it has all its rounds."""
    planned, done = (settings or {}).get("rounds"), len(result.rounds)
    if planned == done and done:
        return "finished", ""
    asked = "an unknown number of" if planned is None else f"{planned}"
    return "unknown", f"an earlier version recorded {done} of {asked} rounds, and not how the run ended"


def _read_settings(folder: Path, damage: list[str]) -> Mapping[str, Any] | None:
    path = folder / EXPERIMENT
    try:
        found = load_yaml(read_text(path), str(path)) if path.is_file() else None
    except FedquiltError as error:
        damage.append(f"{error}; its settings count as not recorded")
        return None
    if found is not None and not isinstance(found, dict):
        damage.append(f"{path}: holds no keys; its settings count as not recorded")
        return None
    return found


def _read_start(folder: Path, damage: list[str]) -> float | None:
    try:
        text = peek_meta(folder / JOURNAL, "started_at")
        return None if text is None else float(text)
    except (FedquiltError, OSError, ValueError) as error:
        damage.append(str(error))
        return None


def name_runs(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Give each run a label of its own: its folder's name, with parent folders where several have the same name."""
    parts = {run.folder: run.folder.resolve().parts for run in runs}
    ends = Counter(end for one in {*parts.values()} for end in _ends(one))
    own = {run.folder: next((e for e in _ends(parts[run.folder]) if ends[e] == 1), "/") for run in runs}
    return [replace(run, label=printable(own[run.folder])) for run in runs]


def _ends(parts: tuple[str, ...]) -> list[str]:
    """Return the ends of a path, the shortest first: ``c``, ``b/c``, ``a/b/c``."""
    return ["/".join(parts[-length:]) for length in range(1, len(parts))]
