"""The algorithms by name. Adding one is one file here and one line in ``ALGORITHMS``."""

from __future__ import annotations

from typing import Any

from fedquilt_common.algorithms.echo import Echo
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.algorithms.fedprox import FedProx

ALGORITHMS: dict[str, type[Any]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
}
"""Published algorithms: each learns, and is held to the checks of tests/contract/test_algorithms.py."""

DIAGNOSTICS: dict[str, type[Any]] = {"echo": Echo}
"""Not algorithms: what ``fedquilt bench`` runs."""
