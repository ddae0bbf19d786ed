"""Plain records and names of types that coordinator, agents and algorithms share.

Only annotations need numpy here, so that importing this module costs an idle agent nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


ClientId = int
"""A client's number, from 0."""
ExchangeId = tuple[int, int]
"""(round from 1, exchange in the round from 0)."""
Precision = Literal["fp32", "fp16", "bf16"]
"""Format of floating-point numbers on the wire."""
OptimiserName = Literal["sgd", "adam", "rmsprop", "adam-keras", "rmsprop-keras"]
"""An optimiser of ``training.optimisers``."""
Scalar = str | int | float | bool
"""A value of ``Task.scalars``."""
Arrays = Mapping[str, "NDArray[Any]"]
"""A model's parameters and buffers by name, in the shapes of the model or of a sub-model."""
Shapes = Mapping[str, tuple[int, ...]]
"""Shape of each array by name."""
Progress = Callable[[float], None]
"""Receives the share of the work that is done, from 0 to 1."""


@dataclass(frozen=True)
class Assignments:
    """What a federation's inventory decides about its boards.

    Attributes:
        owners: the board that hosts each client; clients without an entry are free.
        revoked: boards that are revoked: their messages have no effect.
        relays: the site of each relay that may send replies of the boards behind it; None: any agent may be one.
    """

    owners: Mapping[ClientId, str] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    relays: Mapping[str, str] | None = None

    @property
    def boards(self) -> dict[str, list[ClientId]]:
        """The clients that are assigned to each board that is not revoked."""
        boards: dict[str, list[ClientId]] = {}
        for client, board in sorted(self.owners.items()):
            if board not in self.revoked:
                boards.setdefault(board, []).append(client)
        return boards


@dataclass(frozen=True)
class Profile:
    """What a board reports about itself; a board that keeps its profile private reports its kind only.

    Attributes:
        kind: the kind of board that the experiment's ``fleet`` and an algorithm's ``widths`` name, such as ``weak``.
        cores: number of processor cores; 0 if not reported.
        memory: bytes: the smallest of the board's memory, its cgroup's limit and its owner's limit; 0 if not reported.
        gpu: ``nvidia``, or empty.
        machine: the board's model, else its processor architecture; empty if not reported.
    """

    kind: str = "generic"
    cores: int = 0
    memory: int = 0
    gpu: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Examples:
    """Samples with their labels.

    Attributes:
        x: float32 of shape (n, *input_shape), or the integers of a data set that has those; an array, or
            ``StoredSamples``, which behave as one and convert bytes when a batch is read.
        y: int64 classes of shape (n,), from 0; floats of shape (n, outputs) for regression and soft labels.
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[np.int64]) -> Examples:
        """Return some of the samples.

        Args:
            index: positions of shape (m,), int64, in the order in which the samples are returned.

        Returns:
            m samples of shape (m, *input_shape), which stay as they are stored.
        """
        from fedquilt_common.stored_samples import StoredSamples  # needs numpy

        x = self.x.select(index) if isinstance(self.x, StoredSamples) else self.x[index]
        return Examples(x, self.y[index])


@dataclass(frozen=True)
class Dataset:
    """A data set with its official split.

    Attributes:
        name: its key in ``DATASETS``, or the user's ``package:factory``.
        train: the official training samples; ``x`` has shape (n, *input_shape).
        test: the official test samples; ``x`` has shape (m, *input_shape).
        classes: number of classes; 0 for regression.
        subjects: the person or device that each training sample belongs to, int64 of shape (n,); None if unknown.
        note: a fact that readers of the results need, such as missing official test samples.
        task: a key of ``LEARNING_TASKS``; empty: classification if there are classes, else regression.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    subjects: NDArray[np.int64] | None = None
    note: str = ""
    task: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample."""
        return tuple(self.train.x.shape[1:])
