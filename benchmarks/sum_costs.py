"""Measures adding up and reading partial sums of trained models, in one process; ``tree.py`` keeps the result.

The clients of ``fedquilt bench round`` add the same constant to each number, so their sums are a few bytes. Sums of
trained models are about as large as one model. ``constant`` and ``noise`` compare both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.partial_sums.exact_mean import GroupedReplies, exact_mean
from fedquilt_common.partial_sums.members import SumMember
from fedquilt_common.partial_sums.partial_sum import PartialSum, write_partial_sum
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.messages import SumHeader

NUMBERS: Final = 1_000_000
"""Numbers of fp32 in the model."""
REPLIES: Final = (4, 16)
"""Replies in the smaller and in the larger sum, from which the cost of one more reply follows."""
REPEATS: Final = 3
STEP: Final = 0.01
"""Size of an update relative to the model."""

Model = dict[str, NDArray[Any]]


def measure_sums(numbers: int = NUMBERS) -> list[dict[str, Any]]:
    """Return what sums of constant and of noisy updates cost, per MB of the model."""
    return [measure(kind, numbers) for kind in ("constant", "noise")]


def measure(kind: str, numbers: int) -> dict[str, Any]:
    """Return the sum's bytes per byte of the model, and processor seconds per MB: for each reply, for each sum."""
    rng = np.random.default_rng(0)
    base = {"w": (kind == "noise") * rng.standard_normal(numbers, dtype=np.float32)}
    replies = [update(kind, base, rng) for _ in range(max(REPLIES))]
    with tempfile.TemporaryDirectory(prefix="fedquilt-sums-") as folder:
        path = Path(folder)
        small, large = (fastest(partial(add_up, path, replies[:count], base)) for count in REPLIES)
        read = fastest(partial(read_sum, path / f"sum-{REPLIES[1]}", base))
        size = (Path(folder) / f"sum-{REPLIES[1]}").stat().st_size
    megabytes, more = 4e-6 * numbers, REPLIES[1] - REPLIES[0]
    reply = (large - small) / more
    return {
        "updates": kind,
        "sum_bytes_per_model_byte": round(size / megabytes / 1e6, 4),
        "reply_seconds": round(reply / megabytes, 5),
        "write_seconds": round((small - REPLIES[0] * reply) / megabytes, 5),
        "read_seconds": round(read / megabytes, 5),
    }


def update(kind: str, base: Model, rng: np.random.Generator) -> Model:
    """Return a client's model."""
    size = base["w"].size
    change = np.full(size, 0.5) if kind == "constant" else STEP * rng.standard_normal(size)
    return {"w": base["w"] + change.astype(np.float32)}


def fastest(action: Callable[[], None]) -> float:
    """Return the least processor seconds of an action that is repeated."""
    return min(_time(action) for _ in range(REPEATS))


def _time(action: Callable[[], None]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin


def add_up(folder: Path, replies: Sequence[Model], base: Model) -> None:
    """Write the sum of some replies."""
    header = SumHeader(run="sums", round=1, exchange=0)
    members = [SumMember(client, "0" * 16, 1.0, {}) for client in range(len(replies))]
    write_partial_sum(folder / f"sum-{len(replies)}", header, members, replies, base)


def read_sum(path: Path, base: Model) -> None:
    """Compute the mean of a sum's replies."""
    one = PartialSum(FileArrays(path))
    exact_mean(GroupedReplies([], [(one, base)], [1.0] * len(one.members)), {"w": np.empty_like(base["w"])})
