"""What the client half of an algorithm may touch while it does one task; made in the worker process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Algorithm, Learner
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.public import digest_of, public_set
from fedquilt_common.datasets.shares import Share, clients_evaluate, digest, holdout_of, shares, take
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.sections import Model, Training
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.types import Dataset, Examples
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.messages import RunMessage


@dataclass(frozen=True)
class BoardRun:
    """What all clients of a run share on this board: data set, its partition, the algorithm."""

    run: RunMessage
    experiment: Experiment
    allowed: Collection[str]
    threads: int = 1
    _needs: dict[Any, int] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def dataset(self) -> Dataset:
        return load_dataset(self.experiment.data.set, None, self.allowed)

    @cached_property
    def shares(self) -> Sequence[Share]:
        """Raises DataUnavailableError when this board would cut the data otherwise than the coordinator."""
        cut = shares(self.experiment, self.dataset, self.holdout)
        if self.run.partition is not None and digest(cut) != self.run.partition:
            raise DataUnavailableError(
                f"data set {self.experiment.data.set!r} on this board is not the coordinator's, or is cut otherwise: "
                "compare the files below FEDQUILT_DATA and the versions of fedquilt and numpy"
            )
        return cut

    @cached_property
    def holdout(self) -> float:
        """The part of its samples that each client keeps for testing."""
        return holdout_of(self.experiment, self.algorithm, self.dataset)

    @cached_property
    def build(self) -> Callable[[], Any]:
        """Makes the experiment's model, a torch module."""
        return self.builder(self.experiment.model)

    def builder(self, model: Model) -> Callable[[], Any]:
        """Makes a model that fits the data set."""
        from fedquilt_common.models import build_model

        data = self.dataset
        return build_model(model.name, model.params, data.input_shape, data.classes, self.allowed)

    @cached_property
    def public(self) -> NDArray[Any]:
        """The public samples. Raises DataUnavailableError where they are not those of the coordinator."""
        x = public_set(self.experiment, self.dataset, self.allowed)
        if self.run.public is not None and digest_of(x) != self.run.public:
            raise DataUnavailableError(
                f"the public set on this board is another than the coordinator's ({digest_of(x)[:12]} instead of "
                f"{self.run.public[:12]}): compare the files below FEDQUILT_DATA and the versions of fedquilt and numpy"
            )
        return x

    @cached_property
    def blueprint(self) -> Any:
        """How sub-models are cut from the model. Raises UncuttableModelError."""
        from fedquilt_common.tracing.trace import blueprint_for

        return blueprint_for(self.build, self.dataset.train.x)

    def training_memory(self, part: Slice, training: Training) -> int:
        """Bytes that training the sub-model so takes beyond the process as it is."""
        key = tuple(part.counts.values()), part.absent, training
        if key not in self._needs:
            from fedquilt_common.tracing.memory_estimate import memory_to_train

            self._needs[key] = memory_to_train(self.blueprint, part, training).total
        return self._needs[key]

    @property
    def anatomy(self) -> Anatomy:
        """The model's channel groups."""
        anatomy: Anatomy = self.blueprint.anatomy
        return anatomy

    @cached_property
    def algorithm(self) -> Algorithm:
        choice = self.experiment.algorithm
        return make_algorithm(choice.name, choice.fields, self.allowed)


@dataclass(frozen=True)
class TaskContext:
    """One client's site for one task. ``memory`` may be changed; it is committed together with the reply."""

    board: BoardRun
    client: int
    round: int
    seed: int
    memory_file: Path | None
    capacity: Callable[[], int] = field(repr=False)
    on_progress: Callable[[float], None] = field(repr=False)
    on_need: Callable[[int], None] = field(repr=False)

    @cached_property
    def data(self) -> Examples:
        return take(self.board.dataset, self.board.shares[self.client].train)

    @cached_property
    def test(self) -> Examples:
        """The client's own samples for testing; there may be none.

        Where clients evaluate without keeping any, these are the data set's official ones.
        """
        board = self.board
        if board.holdout == 0 and clients_evaluate(board.algorithm):
            return board.dataset.test
        return take(board.dataset, board.shares[self.client].test)

    @property
    def public(self) -> NDArray[Any]:
        """The samples that coordinator and boards share, shape (n, *input_shape)."""
        return self.board.public

    @property
    def lasting_seed(self) -> int:
        """The same in every round."""
        return derive_seed(self.board.experiment.seed, "client", self.client)

    @cached_property
    def _found(self) -> Mapping[str, NDArray[Any]]:
        return dict(FileArrays(self.memory_file)) if self.memory_file else {}

    @cached_property
    def memory(self) -> dict[str, NDArray[Any]]:
        """What the client has kept; its arrays are read-only, the dictionary is not."""
        return dict(self._found)

    @cached_property
    def learner(self) -> Learner:
        from fedquilt_common.training.learner import (  # torch, in this process only, when needed
            TorchLearner,
            set_up_torch,
        )

        set_up_torch(self.board.threads)
        board, own = self.board, self.board.experiment.variant(self.client)
        training = own.training.decayed(self.round)
        if own.model != board.experiment.model:
            return TorchLearner(board.builder(own.model), training, self.classes, self.on_progress)
        return TorchLearner(board.build, training, self.classes, self.on_progress, lambda: board.blueprint)

    @property
    def classes(self) -> int:
        return self.board.dataset.classes

    @property
    def anatomy(self) -> Anatomy:
        return self.board.anatomy

    def fits(self, part: Slice) -> bool:
        """Whether this board has the memory to train the sub-model ``part`` now."""
        own = self.board.experiment.variant(self.client).training
        need = self.board.training_memory(part, own)  # loads torch and the data set, which take memory themselves
        if need > self.capacity():
            return False
        self.on_need(need)
        return True

    @property
    def memory_changed(self) -> bool:
        """Whether the algorithm has put something else into its memory, or taken something out."""
        return "memory" in self.__dict__ and (
            self.memory.keys() != self._found.keys() or any(self.memory[key] is not x for key, x in self._found.items())
        )
