"""Template filters that format values: short, with units, and a dash for an unknown value (never 0 or NaN)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_server.status.units import (
    DASH,
    duration,
    energy,
    memory,
    number,
    percent,
    time_text,
    traffic,
    whole_duration,
)
from fedquilt_server.status.waiting import ranges


def count(value: int) -> str:
    """Format a count; 0 means that it is not known yet."""
    return str(value) if value else DASH


def clock(at: float) -> str:
    """Format a Unix time as the time of day in UTC. The page's script converts it to the reader's time zone."""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M:%S UTC") if at else DASH
    except (OverflowError, ValueError, OSError):  # no calendar has this time, or it is NaN
        return DASH


def moment(at: float | None) -> str:
    """Format a Unix time as date and time in UTC; a dash for an unknown one."""
    return time_text(at or None) or DASH


def tally(counts: Mapping[str, int]) -> str:
    """Format ``{"1.0": 4, "0.5": 2}`` as "4 x 1.0, 2 x 0.5" with multiplication signs; lines break at commas only."""
    return (
        ", ".join(
            f"{count}\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}{name}"
            for name, count in counts.items()
        )
        or DASH
    )


def metric_text(value: float | None, metric: Metric) -> str:
    """Format the value of a metric: a share in per cent, another number as it is."""
    return percent(value) if metric.unit == "share" else number(value)


FILTERS = {
    "clock": clock,
    "count": count,
    "duration": duration,
    "whole_duration": whole_duration,
    "energy": energy,
    "memory": memory,
    "metric": metric_text,
    "moment": moment,
    "number": number,
    "percent": percent,
    "ranges": ranges,
    "tally": tally,
    "traffic": traffic,
}
