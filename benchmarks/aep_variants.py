"""FedAIoT's AEP as its published code prepares it, where that differs from the paper's text.

``benchmarks/aep_variants.yaml`` measures it; run it with ``PYTHONPATH=benchmarks``.
"""

from __future__ import annotations

from pathlib import Path

from fedquilt_common.datasets import aep
from fedquilt_common.types import Dataset


def month_and_day(folder: Path | None = None) -> Dataset:
    """Load AEP with the month and the day as its only date features, without the weekday and the hour."""
    return aep.load(folder, calendar=("month", "day"))
