"""The records that algorithms, machine, coordinator and agent hand to one another.

Only annotations need numpy here, so that importing this module costs an idle agent nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


ClientId = int
ExchangeId = tuple[int, int]
"""Round and exchange."""
Precision = Literal["fp32", "fp16", "bf16"]
"""Of floating-point numbers on the wire."""
Scalar = str | int | float | bool
Arrays = Mapping[str, "NDArray[Any]"]
Shapes = Mapping[str, tuple[int, ...]]
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Profile:
    """What a board says of itself; 0 and "" where it does not. ``memory`` in bytes: what it has, what its cgroup or its
    owner allows."""

    kind: str = "generic"
    cores: int = 0
    memory: int = 0
    gpu: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Examples:
    """Samples: ``x`` has shape (n, *input_shape), ``y`` shape (n,) for classes, or (n, outputs) for regression and for
    soft labels."""

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[np.int64]) -> Examples:
        """The samples at ``index``, in its order."""
        return Examples(self.x[index], self.y[index])


@dataclass(frozen=True)
class Dataset:
    """A data set with its official split. ``classes`` is 0 for regression.

    ``subjects``: whose each training sample is, shape (n,), where the data set says so. ``note``: what whoever reads
    the results must know, such as that the official test samples are not there.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    subjects: NDArray[np.int64] | None = None
    note: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])
