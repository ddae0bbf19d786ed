"""Writes the result files of a run: rounds.csv, boards.csv, result.json, global.safetensors."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedquilt_common.files.durable import replace_durably, write_atomically
from fedquilt_server.round.events import Checkpoint
from fedquilt_server.runs.journal import Traffic
from fedquilt_server.runs.stopwatch import Stopwatch
from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.snapshot import BoardStatus

_COLUMNS = ("accuracy", "r2", "loss", "global_accuracy", "personal_accuracy")
"""Scores that have a column of their own."""


def round_result(
    done: Checkpoint, watch: Stopwatch, now: float, traffic: Traffic, model_bytes: int, scores: Mapping[str, float]
) -> RoundResult:
    """Return the row of a finished round.

    Args:
        watch: the times of the round.
        now: Unix time in seconds at which the round ends.
        traffic: bytes at the coordinator's socket since the run began.
        model_bytes: size of the global model on the wire.
        scores: results of the evaluation; empty if none was due.
    """
    tally, report = done.tally, done.state.report
    seconds = max(0.0, now - tally.opened_at)
    return RoundResult(
        round=done.round,
        accuracy=scores.get("accuracy"),
        r2=scores.get("r2"),
        loss=scores.get("loss"),
        global_accuracy=scores.get("global_accuracy"),
        personal_accuracy=scores.get("personal_accuracy"),
        seconds=seconds,
        train_seconds=tally.train_seconds,
        overhead_seconds=seconds - tally.train_seconds,
        sending_seconds=watch.sending,
        receiving_seconds=watch.receiving,
        averaging_seconds=watch.averaging,
        evaluate_seconds=watch.evaluating,
        bytes_down=traffic.down - watch.traffic.down,
        bytes_up=traffic.up - watch.traffic.up,
        model_bytes=model_bytes,
        clients=tally.clients,
        asked=tally.asked,
        replies=tally.replies,
        late=tally.late,
        rejected=tally.rejected,
        duplicates=tally.duplicates,
        waste_rate=report.get("waste_rate"),
        trained=report.get("trained", {}),
        label_bytes=(labels := watch.labels.by_client()),
        label_bytes_down=sum(counts["down"] for counts in labels.values()) if labels else None,
        label_bytes_up=sum(counts["up"] for counts in labels.values()) if labels else None,
        client_accuracy=report.get("client_accuracy", {}),
        scores={name: value for name, value in scores.items() if name not in _COLUMNS},
    )


def write_results(folder: Path, result: Result, boards: Sequence[BoardStatus]) -> None:
    """Write ``result.json``, ``rounds.csv`` and ``boards.csv``."""
    write_atomically(folder / "result.json", result.model_dump_json(indent=2) + "\n")
    write_atomically(folder / "rounds.csv", _csv(result.rounds, RoundResult))
    write_atomically(folder / "boards.csv", _csv(boards, BoardStatus))


def write_model(folder: Path, blob: Path) -> None:
    """Write ``global.safetensors``, a copy of the last state's arrays in fp32."""
    fresh = folder / ".global.safetensors.new"
    shutil.copyfile(blob, fresh)
    replace_durably(fresh, folder / "global.safetensors")


def _csv(rows: Sequence[BaseModel], kind: type[BaseModel]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(kind.model_fields))
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.model_dump().items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a list or mapping as words in one cell; a mapping in a mapping as its values, such as ``0=648/648``."""
    if isinstance(value, dict):
        each = {key: "/".join(map(str, i.values())) if isinstance(i, dict) else i for key, i in value.items()}
        return " ".join(f"{key}={item}" for key, item in each.items())
    return " ".join(map(str, value)) if isinstance(value, list) else value


def final_row(rounds: Sequence[RoundResult], model_bytes: int, sha256: str) -> dict[str, float | int | str]:
    """Return ``final`` of result.json: the last round's scores, the best ones, and totals."""
    final: dict[str, float | int | str] = {
        "rounds": len(rounds),
        "seconds": (seconds := sum(r.seconds for r in rounds)),
        "rounds_per_second": len(rounds) / seconds if seconds else 0.0,
        "bytes_down": sum(r.bytes_down for r in rounds),
        "bytes_up": sum(r.bytes_up for r in rounds),
        "model_bytes": model_bytes,
        "global_sha256": sha256,
    }
    for name in _COLUMNS:
        values = [v for r in rounds if (v := getattr(r, name)) is not None]
        if values:
            final[name] = values[-1]
            final[f"best_{name}"] = min(values) if name == "loss" else max(values)
    if any(r.label_bytes for r in rounds):
        final["label_bytes_down"] = sum(r.label_bytes_down or 0 for r in rounds)
        final["label_bytes_up"] = sum(r.label_bytes_up or 0 for r in rounds)
    return final | (dict(rounds[-1].scores) if rounds else {})
