"""Measures the rounds and writes what a run leaves behind: rounds.csv, boards.csv, result.json, global.safetensors."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedquilt_common.wire.codec import wire_dtype_of
from fedquilt_common.files.durable import replace_durably, write_atomically
from fedquilt_common.types import ClientId, Precision
from fedquilt_server.round.events import Replied, Send, Tally
from fedquilt_server.runs.journal import Traffic
from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.snapshot import BoardStatus

_COLUMNS = ("accuracy", "r2", "loss", "global_accuracy", "personal_accuracy")
"""Scores that have a column of their own."""


@dataclass
class LabelBytes:
    """Bytes of soft labels in the open round, of each client: what its tasks hold, once for each exchange, and what
    its payloads held. The same after a recovery, since it follows from the journal."""

    down: dict[tuple[int, ClientId], int] = field(default_factory=dict)
    up: dict[tuple[int, ClientId], int] = field(default_factory=dict)

    def sent(self, send: Send, precision: Precision) -> None:
        """An exchange is opened, or opened again."""
        for client, task in send.tasks.items():
            if task.labels:
                sizes = (wire_dtype_of(str(x.dtype), precision)[1].itemsize * x.size for x in task.arrays.values())
                self.down[send.exchange, client] = sum(sizes)

    def replied(self, event: Replied) -> None:
        """A reply has come; if it is one of soft labels it counts."""
        if (event.exchange, event.client) in self.down:
            self.up[event.exchange, event.client] = event.payload

    def by_client(self) -> dict[str, dict[str, int]]:
        """Both directions of each client."""
        return {
            str(client): {"down": _of(self.down, client), "up": _of(self.up, client)}
            for client in sorted({client for _, client in self.down})
        }


def _of(counted: Mapping[tuple[int, ClientId], int], client: ClientId) -> int:
    return sum(size for (_, other), size in counted.items() if other == client)


@dataclass
class Stopwatch:
    """Unix times and durations of the open round, in seconds, and the bytes of its soft labels."""

    traffic: Traffic
    labels: LabelBytes = field(default_factory=LabelBytes)
    sending: float = 0.0
    first_chunk: float | None = None
    last_reply: float | None = None
    averaging: float = 0.0
    evaluating: float = 0.0

    @property
    def receiving(self) -> float:
        """From the first chunk of the first reply to the last reply on disk."""
        if self.first_chunk is None or self.last_reply is None:
            return 0.0
        return max(0.0, self.last_reply - self.first_chunk)


def round_result(
    number: int,
    tally: Tally,
    watch: Stopwatch,
    now: float,
    traffic: Traffic,
    model_bytes: int,
    scores: Mapping[str, float],
    report: Mapping[str, Any],
) -> RoundResult:
    """The row of a finished round."""
    seconds = max(0.0, now - tally.opened_at)
    return RoundResult(
        round=number,
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
        label_bytes_down=sum(of["down"] for of in labels.values()) if labels else None,
        label_bytes_up=sum(of["up"] for of in labels.values()) if labels else None,
        client_accuracy=report.get("client_accuracy", {}),
        scores={name: value for name, value in scores.items() if name not in _COLUMNS},
    )


def write_results(folder: Path, result: Result, boards: Sequence[BoardStatus]) -> None:
    """``result.json``, ``rounds.csv`` and ``boards.csv``."""
    write_atomically(folder / "result.json", result.model_dump_json(indent=2) + "\n")
    write_atomically(folder / "rounds.csv", _csv(result.rounds, RoundResult))
    write_atomically(folder / "boards.csv", _csv(boards, BoardStatus))


def write_model(folder: Path, blob: Path) -> None:
    """``global.safetensors``: a copy of the last state's arrays in fp32."""
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
    """Lists and mappings as words in one cell; of a mapping in a mapping the values, such as ``0=648/648``."""
    if isinstance(value, dict):
        each = {key: "/".join(map(str, i.values())) if isinstance(i, dict) else i for key, i in value.items()}
        return " ".join(f"{key}={item}" for key, item in each.items())
    return " ".join(map(str, value)) if isinstance(value, list) else value


def final_row(rounds: Sequence[RoundResult], model_bytes: int, sha256: str) -> dict[str, float | int | str]:
    """``final`` of result.json: the last round's scores, the best one, totals."""
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
