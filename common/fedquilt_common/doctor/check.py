"""One line of the doctor's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and where it is not well, what to do."""

    name: str
    state: State
    said: str
    advice: str = ""


def graded(name: str, value: float, warn: float, fail: float, said: str, advice: str) -> Check:
    """``fail`` below the one bound, ``warn`` below the other."""
    state: State = "fail" if value < fail else "warn" if value < warn else "ok"
    return Check(name, state, said, advice if state != "ok" else "")
