"""The result of one check of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """A line of the doctor's report. The attributes are also the keys of ``--json``.

    Attributes:
        name: what was checked.
        state: the result.
        said: what was found.
        advice: what to do; empty for ``ok``.
    """

    name: str
    state: Grade
    said: str
    advice: str = ""


def grade(name: str, value: float, warn: float, fail: float, said: str, advice: str) -> Check:
    """Grade a measured value: ``fail`` below the bound ``fail``, ``warn`` below the bound ``warn``."""
    state: Grade = "fail" if value < fail else "warn" if value < warn else "ok"
    return Check(name, state, said, advice if state != "ok" else "")
