"""Writes run folders as finished, failed and older runs leave them, without running anything."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import Result, RoundResult


def near(value: float) -> Any:
    """Return what equals a number but for rounding, for fields that are typed as numbers."""
    return pytest.approx(value)


START = 1_795_300_000.0


def make_round(number: int, accuracy: float | None, **changes: Any) -> RoundResult:
    """Return a round of 2 s and 3,000 bytes, with the given accuracy."""
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    usual = {"round": number, "accuracy": accuracy, "seconds": 2.0, "bytes_down": 1000, "bytes_up": 2000, "clients": 4}
    return RoundResult.model_validate({**zeros, **usual, **changes})


def make_rounds(accuracies: Sequence[float | None], **changes: Any) -> list[RoundResult]:
    return [make_round(number, accuracy, **changes) for number, accuracy in enumerate(accuracies, 1)]


def make_experiment(algorithm: str, seed: int, rounds: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "digits", "seed": seed, "rounds": rounds, "data": {"set": "digits", "clients": 4},
        "model": {"name": "mlp"}, "algorithm": {"name": algorithm}, "training": {"lr": 0.05}, **changes,
    }  # fmt: skip


def write_run(
    folder: Path,
    accuracies: Sequence[float | None] = (0.5, 0.8, 0.9),
    *,
    algorithm: str = "fedavg",
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    rounds: Sequence[RoundResult] | None = None,
    **changes: Any,
) -> Path:
    """Write ``experiment.yaml`` and ``result.json``.

    Args:
        folder: the run folder.
        accuracies: of the rounds.
        algorithm: name of the algorithm.
        seed: of the run.
        settings: further keys of the experiment.
        rounds: the rounds instead of ``accuracies``.
        changes: other fields of the result, such as ``status``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = list(make_rounds(accuracies) if rounds is None else rounds)
    experiment = make_experiment(algorithm, seed, **{"rounds": len(found), **(settings or {})})
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    usual = {"name": "digits", "run": f"{folder.parent.name}-{folder.name}", "algorithm": algorithm}
    ending = {"dataset": "digits", "seed": seed, "status": "finished", "exit_code": 0}
    result = Result.model_validate({**usual, **ending, "rounds": found, **changes})
    (folder / "result.json").write_text(result.model_dump_json())
    return folder


def learning(rounds: int, best: float, pace: float, wave: float) -> list[float]:
    """Return accuracies that rise towards ``best``, with a small wave."""
    return [best - (best - 0.1) * math.exp(-n / pace) + 0.01 * math.sin(wave + 2 * n) for n in range(1, rounds + 1)]


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as CSV with the keys of the first one as its first line."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def reply(agent: str, client: int, round: int, **changes: Any) -> dict[str, Any]:
    """Return a row of ``replies.csv``: opened at 0, trained from 1 to 4, sent until 5, closed at 6, each round 10 s."""
    at = START + 10 * round
    usual = dict.fromkeys(ReplyRow.model_fields, "") | {
        "round": round, "exchange": 0, "client": client, "agent": agent, "samples": 100, "loss": 0.5, "accuracy": 0.9,
        "train_seconds": 3.0, "bytes": 1000, "memory_peak": 5e8, "joules": 12.0, "outcome": "accepted",
        "opened_at": at, "began_at": at + 4, "arrived_at": at + 5, "closed_at": at + 6,
    }  # fmt: skip
    return {**usual, **changes}


def write_boards(folder: Path, boards: Mapping[str, Sequence[int]], rounds: int) -> None:
    """Write ``replies.csv``, ``telemetry.csv``, ``boards.csv`` and ``coverage.json`` of boards and their clients."""
    rows, samples = [], []
    for number in range(1, rounds + 1):
        for place, (board, clients) in enumerate(boards.items()):
            for index, client in enumerate(clients):
                slow = 1.5 + place + 0.4 * math.sin(number + client) + index
                at = START + 20 * number
                times = {"opened_at": at, "began_at": at + 1 + slow, "arrived_at": at + 1.8 + slow}
                accuracy = 0.6 + 0.3 * math.sin(client) ** 2
                extra = {"train_seconds": slow, "closed_at": at + 12, "accuracy": accuracy, **times}
                outcome = "late" if (number, place, index) == (rounds, 1, 0) else "accepted"
                rows.append(reply(board, client, number, **extra, outcome=outcome))
            warm = {"temperature": 50 + place, "power": 4 + place, "joules": 60.0 * number * (4 + place)}
            samples.append({"time": START + 20 * number, "board": board, **warm, "memory": 1e9})
    write_table(folder / "replies.csv", rows)
    write_table(folder / "telemetry.csv", samples)
    write_table(folder / "boards.csv", [{"agent": b, "kind": b.split("-")[0], "cores": 4} for b in boards])
    layers = [("conv1", 16), ("conv2", 32), ("fc1", 64), ("fc2", 10)]
    found = [
        {"name": name, "counts": [max(0, 3 * rounds * (size - i) // size - rounds // 2) for i in range(size)],
         "latest": [1] * size, "boards": {board: 1 / (1 + place) for place, board in enumerate(boards)}}
        for name, size in layers
    ]  # fmt: skip
    (folder / "coverage.json").write_text(json.dumps({"rounds": rounds, "layers": found}))
