"""What a status page shows in tests: rounds, boards, and a snapshot of a run that trains."""

from __future__ import annotations

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import BoardStatus, Snapshot


def row(number: int, loss: float | None = 0.5) -> RoundResult:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    known = {"round": number, "accuracy": 0.1 * number, "loss": loss, "bytes_up": 3000, "clients": 4}
    return RoundResult.model_validate({**zeros, **known})


def status(agent: str, **known: object) -> BoardStatus:
    return BoardStatus.model_validate({"agent": agent, **known})


def snapshot(**changes: object) -> Snapshot:
    known = {"name": "demo", "phase": "training", "broker_connected": True, "round": 2, "rounds": 9}
    return Snapshot.model_validate({**known, "history": [row(1)], **changes})
