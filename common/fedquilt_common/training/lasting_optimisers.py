"""Optimisers that outlive a training, so that momentum continues where the training before it ended."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedquilt_common.algorithm_api.training_settings import KEPT_WITH_SUB_MODELS
from fedquilt_common.errors import ExperimentError
from fedquilt_common.submodels.slices import Slice

if TYPE_CHECKING:
    from fedquilt_common.algorithm_api import Part

OptimiserState = dict[str, NDArray[Any]]


@dataclass
class LastingOptimisers:
    """The states of a task's optimisers; each is found again by its place in the task.

    Attributes:
        arrays: changed in place: ``<prefix><training>.<phase>/<entry>`` for each entry of ``Optimiser.state``.
            Trainings and phases count from 0.
        prefix: distinguishes these optimisers from those of other tasks.
        trainings: number of trainings that the task has begun.
    """

    arrays: MutableMapping[str, NDArray[Any]]
    prefix: str = ""
    trainings: int = 0

    def begin(self, part: Part | None) -> dict[int, OptimiserState]:
        """Begin the task's next training, and return the state of each of its phases that has one.

        Args:
            part: what is trained of the model; None: the whole model.

        Raises:
            ExperimentError: it is a sub-model.
        """
        if isinstance(part, Slice):
            raise ExperimentError(f"training.{KEPT_WITH_SUB_MODELS}")
        own = f"{self.prefix}{self.trainings}."
        self.trainings += 1
        states: dict[int, OptimiserState] = {}
        for name in (name for name in self.arrays if name.startswith(own)):
            phase, entry = name[len(own) :].split("/", 1)
            states.setdefault(int(phase), {})[entry] = self.arrays[name]
        return states

    def end(self, states: Mapping[int, OptimiserState]) -> None:
        """Replace the states of the training that ``begin`` began last, by the number of the phase.

        Entries of parameters that a phase did not train this time are removed, so that these start anew later.
        """
        for phase, state in states.items():
            own = f"{self.prefix}{self.trainings - 1}.{phase}/"
            for stale in [name for name in self.arrays if name.startswith(own)]:
                del self.arrays[stale]
            self.arrays.update({f"{own}{entry}": array for entry, array in state.items()})
