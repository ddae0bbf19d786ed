"""Writes the result files of a run: result.json, the tables of rounds, clients, classes and boards, and the model."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fedquilt_common.error_messages import RESUME
from fedquilt_common.errors import AlgorithmError, PayloadError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.files.durable import replace_durably, write_atomically
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_common.learning_tasks.class_scores import CLASS_ACCURACY
from fedquilt_common.learning_tasks.metrics import (
    ACCURACY,
    LOCAL_METRICS,
    MAIN_METRICS,
    MEAN_LOCAL_METRICS,
    METRICS,
    SECOND_METRICS,
)
from fedquilt_common.rejections import first_problem, list_problems
from fedquilt_common.types import Arrays
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import FileArrays
from fedquilt_server.round.events import Checkpoint, Tally
from fedquilt_server.runs.journal import Traffic
from fedquilt_server.runs.stopwatch import Stopwatch
from fedquilt_server.runs.tables import boards_csv, classes_csv, clients_csv, rounds_csv
from fedquilt_server.status.results import FORMAT, NEWER, SCORE_COLUMNS, Ending, Result, RoundResult
from fedquilt_server.status.run_file_names import BOARDS, CLASSES, CLIENTS, EXPERIMENT, MODEL, RESULT, ROUNDS
from fedquilt_server.status.snapshot import BoardStatus

_WITH_BEST: Final = dict.fromkeys((
    *SCORE_COLUMNS,
    *(metric.name for metric in (*MAIN_METRICS, *SECOND_METRICS, *LOCAL_METRICS, *MEAN_LOCAL_METRICS)),
    *(f"{model}_{metric.name}" for metric in MAIN_METRICS for model in ("global", "personal")),
))  # fmt: skip
"""Scores whose best value is in ``final``."""
_OWN_FIELDS: Final = frozenset(
    ("waste_rate", "trained", "client_accuracy", "central_privacy", *(f"client_{name}" for name in METRICS))
)
"""Names in ``State.report`` whose values have a field of their own in the row."""
OTHER_VERSION: Final = "is damaged, or of another version ({}); use the version of the run, or name another run"
"""What is wrong with a recorded experiment that this version does not accept; the placeholder is for the reason."""
SHARE: Final = 0.05
"""The largest share of a run's time that writing result files takes, except at its end."""


def round_result(
    done: Checkpoint,
    watch: Stopwatch,
    now: float,
    traffic: Traffic,
    model_bytes: int,
    scores: Mapping[str, float] | None,
) -> RoundResult:
    """Return the row of a finished round.

    Args:
        watch: the times of the round.
        now: Unix time in seconds at which the round ends.
        traffic: bytes at the coordinator's socket since the run began.
        model_bytes: size of the global model on the wire.
        scores: results of the evaluation; empty if none was due, None if they follow while the next round is open.

    Raises:
        AlgorithmError: a value of ``State.report`` that has a field of its own is not of the field's type.
    """
    tally = done.tally
    seconds = max(0.0, now - tally.opened_at)
    fields = dict[str, Any](
        round=done.round,
        seconds=seconds,
        train_seconds=tally.train_seconds,
        overhead_seconds=seconds - tally.train_seconds,
        away_seconds=tally.away_seconds,
        sending_seconds=watch.sending,
        receiving_seconds=watch.receiving,
        averaging_seconds=watch.averaging,
        evaluate_seconds=watch.evaluating,
        evaluated_afterwards=scores is None,
        bytes_down=traffic.down - watch.traffic.down,
        bytes_up=traffic.up - watch.traffic.up,
        model_bytes=model_bytes,
        **_reply_fields(tally),
        **_report_fields(done.state.report),
        **_label_fields(watch.labels.by_client()),
        **score_fields(scores or {}),
    )
    try:
        return RoundResult.model_validate(fields)
    except ValidationError as error:
        raise _report_error(done.round, error) from None


def _reply_fields(tally: Tally) -> dict[str, Any]:
    """Return the fields that count replies."""
    return dict[str, Any](
        clients=tally.clients,
        asked=tally.asked,
        replies=tally.replies,
        late=tally.late,
        rejected=tally.rejected,
        duplicates=tally.duplicates,
        missing={str(number): dict(clients) for number, clients in tally.missing.items()},
        discarded={str(number): list(clients) for number, clients in tally.discarded.items()},
        staleness=sum(tally.ages) / len(tally.ages) if tally.ages else None,
        most_stale=max(tally.ages, default=None),
    )


def _report_fields(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with what the algorithm reports."""
    return dict[str, Any](
        waste_rate=report.get("waste_rate"),
        trained=report.get("trained", {}),
        client_accuracy=report.get("client_accuracy", {}),
        client_scores=_client_scores(report),
        report={name: value for name, value in report.items() if name not in _OWN_FIELDS},
        central_privacy=report.get("central_privacy"),
    )


def _report_error(round: int, error: ValidationError) -> AlgorithmError:
    """Make the error for a value of ``State.report`` that a field of the row cannot have."""
    problem = list_problems(error)[0]
    return AlgorithmError(
        f"round {round}: State.report cannot have {problem.path} = {problem.value!r}: {problem.why}. It has a field of "
        f"its own in result.json. Correct it, or choose another name than {problem.path.split('.')[0]!r}, and {RESUME}"
    )


def _client_scores(report: Mapping[str, Any]) -> Any:
    """Return the main metric of each client's own model, for learning tasks that have another one than accuracy."""
    others = (report.get(f"client_{name}") for name in METRICS if name != ACCURACY.name)
    return next(filter(None, others), {})


def _label_fields(labels: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Return the row's bytes of soft labels: of each client, and in total if there are any."""
    totals = {f"label_bytes_{way}": sum(counts[way] for counts in labels.values()) for way in ("down", "up")}
    return {"label_bytes": labels, **(totals if labels else {})}


def score_fields(scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the row's scores: those with a column of their own, and of the others those that JSON can hold."""
    finite = {name: value for name, value in scores.items() if math.isfinite(value)}
    return {
        **{name: scores.get(name) for name in SCORE_COLUMNS},
        "class_accuracy": {
            int(name.removeprefix(CLASS_ACCURACY)): value for name, value in finite.items() if _is_of_class(name)
        },
        "scores": {
            name: value for name, value in finite.items() if name not in SCORE_COLUMNS and not _is_of_class(name)
        },
    }


def _is_of_class(name: str) -> bool:
    return name.startswith(CLASS_ACCURACY) and name.removeprefix(CLASS_ACCURACY).isdecimal()


def write_results(folder: Path, result: Result, boards: Sequence[BoardStatus]) -> None:
    """Write ``result.json``, ``rounds.csv``, ``clients.csv``, ``classes.csv`` and ``boards.csv``.

    Raises:
        RunFolderError: the disk is full or read-only.
    """
    texts = {
        RESULT: result.model_dump_json(indent=2) + "\n",
        ROUNDS: rounds_csv(result.rounds),
        CLIENTS: clients_csv(result.rounds),
        CLASSES: classes_csv(result.rounds),
        BOARDS: boards_csv(boards),
    }
    for name, text in texts.items():
        with report_run_errors(folder / name):
            write_atomically(folder / name, text)


class ResultFiles:
    """Keeps the result files up to date.

    They grow with the rounds, so writing them takes at most ``SHARE`` of the time.

    Args:
        folder: the run folder.
        make: returns the content of ``result.json``.
        stale: whether rounds may be missing in the files, as after a kill.
    """

    def __init__(self, folder: Path, make: Callable[[], Result], *, stale: bool) -> None:
        self._folder, self._make = folder, make
        self._stale = stale
        self._due = 0.0

    def note_round(self, boards: Sequence[BoardStatus]) -> None:
        """Write the files after a round, unless too little time has passed since the last writing.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        self._stale = True
        self.write_due(boards)

    def write_due(self, boards: Sequence[BoardStatus]) -> None:
        """Write the files if rounds are missing in them, unless too little time has passed since the last writing.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        if self._stale and time.monotonic() >= self._due:
            self.write(boards)

    def catch_up(self, boards: Sequence[BoardStatus]) -> None:
        """Write the files if rounds are missing in them.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        if self._stale:
            self.write(boards)

    def write(self, boards: Sequence[BoardStatus]) -> None:
        """Write the files.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        started = time.monotonic()
        write_results(self._folder, self._make(), boards)
        ended = time.monotonic()
        self._stale, self._due = False, ended + (ended - started) * (1 / SHARE - 1)


def write_model(folder: Path, blob: Blob) -> None:
    """Write ``global.safetensors``, a copy of the last state's arrays in fp32.

    Raises:
        RunFolderError: the disk is full or read-only.
    """
    target, fresh = folder / MODEL, folder / f".{MODEL}.new"
    with report_run_errors(target):
        shutil.copyfile(blob.path, fresh)
        replace_durably(fresh, target)


def read_experiment(folder: Path) -> Experiment:
    """Return the recorded experiment, even that of a central training, whose algorithm is none of a federation.

    Raises:
        RunFolderError: this version does not accept it.
        ExperimentError: the file cannot be read.
    """
    path = folder / EXPERIMENT
    try:
        return Experiment.model_validate(load_yaml(read_text(path), str(path)))
    except ValidationError as error:
        raise RunFolderError(f"{path}: {OTHER_VERSION.format(first_problem(error))}") from None


def read_result(folder: Path) -> Result:
    """Read the ``result.json`` of a run folder.

    Raises:
        RunFolderError: the folder or the file is missing, or the file is damaged.
    """
    path = folder / RESULT
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: there is no such folder; check the path")
    if not path.is_file():
        raise RunFolderError(
            f"{folder}: holds no {RESULT}, so no round is finished there; name a run folder, such as one below runs/"
        )
    try:
        return Result.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}; make it readable") from None
    except ValidationError as error:
        if any(problem["type"] == NEWER for problem in error.errors()):
            raise RunFolderError(f"{path}: {first_problem(error)}; update this one") from None
        raise RunFolderError(
            f"{path}: is damaged ({first_problem(error)}); run the experiment again with another run folder"
        ) from None


def read_model(folder: Path, result: Result) -> Arrays:
    """Return the final global model of a run, read lazily; without arrays if the algorithm has none.

    Args:
        folder: the run folder.
        result: its ``result.json``.

    Raises:
        RunFolderError: the run is not finished, or the file is damaged.
    """
    path = folder / MODEL
    if not path.is_file():
        raise RunFolderError(
            f"{folder}: holds no {MODEL}, so the run is not finished; run the same experiment in it again to resume"
        )
    try:
        arrays = FileArrays(path)
        expected = result.final.get("global_sha256")
        if expected is not None and digest_file(path, "sha256") != expected:
            raise PayloadError("its SHA-256 is not the global_sha256 of result.json")
    except (PayloadError, OSError) as error:
        raise RunFolderError(f"{path}: is damaged: {error}; run the experiment again") from error
    return arrays


def record_ending(folder: Path, experiment: Experiment, ending: Ending) -> None:
    """Write into ``result.json`` how a run ended while no coordinator works in its folder; it may have no run yet.

    A file that is missing or damaged gets no rounds. The coordinator writes those of its journal.

    Raises:
        RunFolderError: the disk is full or read-only.
    """
    try:
        result = read_result(folder)
    except RunFolderError:
        result = Result(
            format=FORMAT, name=experiment.name, run="", algorithm=experiment.algorithm.name,
            dataset=experiment.data.set, seed=experiment.seed, rounds=[],
        )  # fmt: skip
    ended = result.model_copy(update=ending.model_dump())
    with report_run_errors(folder / RESULT):
        write_atomically(folder / RESULT, ended.model_dump_json(indent=2) + "\n")


def final_row(rounds: Sequence[RoundResult], model_bytes: int) -> dict[str, float | int | str]:
    """Return ``final`` of result.json: the last value of each score, the best ones, and totals."""
    final: dict[str, float | int | str] = {
        "rounds": len(rounds),
        "seconds": sum(r.seconds for r in rounds),
        "rounds_per_second": len(rounds) / running if (running := sum(r.running_seconds for r in rounds)) else 0.0,
        "bytes_down": sum(r.bytes_down for r in rounds),
        "bytes_up": sum(r.bytes_up for r in rounds),
        "model_bytes": model_bytes,
    }
    for name in _WITH_BEST:
        values = [v for r in rounds if (v := r.value(name)) is not None]
        if values:
            smallest = name in METRICS and METRICS[name].best == "min"
            final[name] = values[-1]
            final[f"best_{name}"] = min(values) if smallest else max(values)
    if any(r.label_bytes for r in rounds):
        final["label_bytes_down"] = sum(r.label_bytes_down or 0 for r in rounds)
        final["label_bytes_up"] = sum(r.label_bytes_up or 0 for r in rounds)
    return final | {name: value for row in rounds for name, value in row.scores.items()}
