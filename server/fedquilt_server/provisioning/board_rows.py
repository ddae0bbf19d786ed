"""A board's record as a row for people and programs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from fedquilt_common.doctor.broker import WARN_DAYS
from fedquilt_server.provisioning.kinds import KINDS
from fedquilt_server.provisioning.record import BoardRecord


def board_row(name: str, board: BoardRecord) -> dict[str, Any]:
    """Return a board's record and the state of its identity as plain data."""
    return {"board": name, **board.model_dump(mode="json"), "state": identity_state(board)}


def identity_state(board: BoardRecord) -> str:
    """Return ``good``, ``ends soon``, ``expired`` or ``revoked``."""
    if board.revoked is not None:
        return "revoked"
    left = board.until - datetime.now(timezone.utc)
    return "expired" if left < timedelta() else "ends soon" if left < timedelta(days=WARN_DAYS) else "good"


def kind_label(kind: str) -> str:
    """Return the full name of a kind of board."""
    return KINDS[kind].label if kind in KINDS else kind
