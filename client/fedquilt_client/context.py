"""The context of a client half during one task; made in the worker process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_client.answers import answer
from fedquilt_client.checked_work import do_work
from fedquilt_client.samples import ClientSamples, DeliveredSamples, form_from
from fedquilt_client.uncertain_resources import RoundLimits, limits_of
from fedquilt_common.algorithm_api import Algorithm, Learner, Reply, Task, declaration_of, find_level, private_passes
from fedquilt_common.algorithm_api.training_settings import training_problem
from fedquilt_common.datasets.public import digest_public_set
from fedquilt_common.datasets.shares import Share, take_labels, take_samples
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.memories import find_memories
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.learning_tasks import LearningTask
from fedquilt_common.privacy.promises import check_privacy
from fedquilt_common.private_memory import OPTIMISERS, SECRETS, algorithm_arrays
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.training.lasting_optimisers import LastingOptimisers
from fedquilt_common.training_jobs import Job, JobData, Spending
from fedquilt_common.types import Arrays, ClientId, Examples, Shapes
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.messages import RunMessage

if TYPE_CHECKING:
    from fedquilt_client.privacy_account import PrivacyAccount


@dataclass(frozen=True)
class BoardRun:
    """What all clients of a run share on this board: algorithm, data set, checked partition and public set.

    Args:
        run: the coordinator's message about the run, with the digests to check.
        experiment: the validated experiment of that message.
        allowed: packages that the experiment may load code from.
        threads: number of CPU threads for training.
    """

    run: RunMessage
    experiment: Experiment
    allowed: Collection[str]
    threads: int = 1
    _needs: dict[Any, int] = field(default_factory=dict, repr=False, compare=False)
    _ids: dict[ClientId, NDArray[np.uint64]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def tools(self) -> ExperimentTools:
        """Builds what the experiment stands for; ``shares`` and ``public`` here are the checked ones."""
        form = form_from(self.run.data) if self.run.data is not None else None
        return ExperimentTools(self.experiment, self.allowed, form)

    @cached_property
    def is_private(self) -> bool:
        """Whether any client trains with local differential privacy."""
        return self.experiment.is_private

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm with the hyper-parameters of the experiment."""
        return self.tools.algorithm()

    @cached_property
    def is_memoryless(self) -> bool:
        """Whether it is sure that clients keep nothing from task to task."""
        return not any(find_memories(self.experiment, declaration_of(self.algorithm).private_memory))

    @cached_property
    def shares(self) -> Sequence[Share]:
        """The partition: one share of the samples for each client.

        Raises:
            DataUnavailableError: it differs from the coordinator's.
        """
        shares = self.tools.shares
        if self.run.partition is not None and self.tools.samples_digest() != self.run.partition:
            raise DataUnavailableError(
                f"data set {self.experiment.data.set!r} on this board, or its partition, differs from the "
                "coordinator's: compare the files below FEDQUILT_DATA and the versions of fedquilt and numpy"
            )
        return shares

    def training_samples(self, client: ClientId) -> Examples:
        """Return the samples that a client trains on, with the experiment's noise.

        Raises:
            DataUnavailableError: the partition or the changed labels differ from the coordinator's.
        """
        _ = self.shares  # compares them
        return self.tools.training_samples(client)

    @cached_property
    def public(self) -> NDArray[Any]:
        """The public set, shape (n, *input_shape), in the data set's dtype.

        Raises:
            DataUnavailableError: its files are missing or damaged, or differ from the coordinator's.
        """
        x = self.tools.public
        if self.run.public is not None and digest_public_set(x) != self.run.public:
            raise DataUnavailableError(
                f"the public set on this board differs from the coordinator's ({digest_public_set(x)[:12]} instead of "
                f"{self.run.public[:12]}): compare the files below FEDQUILT_DATA and the versions of fedquilt and numpy"
            )
        return x

    @property
    def anatomy(self) -> Anatomy:
        """The channel groups of the experiment's model.

        Raises:
            UncuttableModelError: fedquilt cannot cut sub-models from the model.
        """
        return self.tools.anatomy

    def sample_ids(self, client: ClientId, samples: Examples, *, stays: bool) -> NDArray[np.uint64]:
        """Return which samples a client has, uint64 of shape (n,), as ``identify_samples`` does.

        Args:
            client: its number.
            samples: its samples.
            stays: whether they stay the same in the run, so that they are identified once.
        """
        from fedquilt_common.privacy.samples_spent import identify_samples

        if client not in self._ids or not stays:
            self._ids[client] = identify_samples(samples)
        return self._ids[client]

    def training_memory(self, part: Slice, training: Training, *, private: bool = False) -> int:
        """Estimate the bytes that training a sub-model takes beyond those that the process uses already.

        Args:
            part: the sub-model.
            training: the client's training section.
            private: whether the client trains with differential privacy, which loads Opacus.
        """
        key = tuple(part.counts.values()), part.absent, training, private
        if key not in self._needs:
            from fedquilt_common.tracing.memory_estimate import memory_to_train
            from fedquilt_common.training.precision import occupy_device

            occupy_device(training)
            if private:
                import fedquilt_common.training.private_gradients  # noqa: F401 - Opacus takes memory too
            self._needs[key] = memory_to_train(self.tools.blueprint, part, training, private=private).total
        return self._needs[key]


@dataclass(frozen=True)
class PartitionSamples:
    """A client's share of the data set that the board has."""

    board: BoardRun
    client: ClientId

    @property
    def train(self) -> Examples:
        """Return the share's training samples."""
        return self.board.training_samples(self.client)

    @property
    def raw(self) -> Examples:
        """Return the share's training samples as they are in the data set."""
        return take_samples(self.board.tools.raw_dataset, self.board.shares[self.client].train)

    @property
    def test(self) -> Examples:
        """Return the share's test samples; official ones if clients test without keeping any."""
        tools = self.board.tools
        if tools.tests_on_official_samples:
            labels = take_labels(tools.raw_dataset, self.board.shares[self.client].train)
            return tools.select_test(tools.dataset.test, labels)
        return take_samples(tools.dataset, self.board.shares[self.client].test)

    @property
    def public(self) -> NDArray[Any]:
        """Return the board's public set, which is compared with the coordinator's."""
        return self.board.public


@dataclass(frozen=True)
class TaskContext:
    """The client context of one task; ``memory`` is committed together with the reply.

    Args:
        board: what all clients of the run share on this board.
        client: the client's number, from 0.
        round: the round's number, from 1.
        seed: seed of this task.
        memory_file: safetensors file with the client's private memory; None if it has none.
        capacity: returns the bytes that training may take now.
        on_progress: called after each training step with the part that is done, in [0, 1].
        on_need: called with the bytes that a sub-model needs, once it fits.
        fitting: shapes of the only sub-model that counts as fitting; None: the free memory decides.
        delivered: the client's samples if the board does not have the data set.
        job: the task, for the account of its privacy; None if no client has differential privacy.
        kind: of the task.
    """

    board: BoardRun
    client: int
    round: int
    seed: int
    memory_file: Path | None
    capacity: Callable[[], int] = field(repr=False)
    on_progress: Callable[[float], None] = field(repr=False)
    on_need: Callable[[int], None] = field(repr=False)
    fitting: Shapes | None = None
    delivered: JobData | None = None
    job: Job | None = None
    kind: str = ""

    @cached_property
    def data(self) -> Examples:
        """The client's training samples."""
        return self._samples.train

    @cached_property
    def test(self) -> Examples:
        """The client's samples for testing; there may be none.

        Where the clients evaluate without keeping any, these are official test samples. With differential privacy
        there are no others, because scores on a client's own samples would reveal something of them.
        """
        test = self._samples.test
        if self._account is not None and not self.board.tools.tests_on_official_samples:
            return test.take(np.zeros(0, np.int64))
        return test

    @cached_property
    def _samples(self) -> ClientSamples:
        if self.delivered is None:
            return PartitionSamples(self.board, self.client)
        return DeliveredSamples(self.board.tools, self.client, self.delivered)

    @cached_property
    def public(self) -> NDArray[Any]:
        """The public set that coordinator and boards share, shape (n, *input_shape).

        Raises:
            DataUnavailableError: its files are missing or damaged, or differ from the coordinator's.
        """
        return self._samples.public

    @property
    def lasting_seed(self) -> int:
        """Seed of the client that is the same in every round."""
        return derive_seed(self.board.experiment.seed, "client", self.client)

    def first_model(self) -> Arrays:
        """Return the initial model of the run, in the model's shapes."""
        return self.learner.init(self.board.tools.model_seed)

    @cached_property
    def _stored_memory(self) -> Mapping[str, NDArray[Any]]:
        return dict(FileArrays(self.memory_file)) if self.memory_file else {}

    @cached_property
    def memory(self) -> dict[str, NDArray[Any]]:
        """The client's private arrays; replace entries, but the arrays themselves are read-only."""
        return algorithm_arrays(self._stored_memory)

    @cached_property
    def secrets(self) -> dict[str, NDArray[Any]]:
        """The secrets of an open sum of secure aggregation, which the algorithm does not see."""
        stored = self._stored_memory
        return {name[len(SECRETS) :]: stored[name] for name in stored if name.startswith(SECRETS)}

    @cached_property
    def optimisers(self) -> dict[str, NDArray[Any]]:
        """The states of the optimisers that last, which the algorithm does not see (``LastingOptimisers``)."""
        return {name: array for name, array in self._stored_memory.items() if name.startswith(OPTIMISERS)}

    @property
    def memory_to_store(self) -> dict[str, NDArray[Any]]:
        """All that the client keeps until its next task."""
        return self.memory | self.optimisers | {f"{SECRETS}{name}": array for name, array in self.secrets.items()}

    @cached_property
    def learner(self) -> Learner:
        """Trains and evaluates the client's model, with the training settings of this round."""
        variant = self.board.experiment.variant(self.client)
        if problem := training_problem(self.board.algorithm, variant.training):
            raise ExperimentError(f"training.{problem}")
        lasting = None
        if variant.training.keep_optimiser:
            lasting = LastingOptimisers(self.optimisers, f"{OPTIMISERS}{self.kind}/")
        return self.board.tools.make_learner(
            variant.model,
            variant.training.at_round(self.round),
            threads=self.board.threads,
            on_progress=self.on_progress,
            meter=self._account.meter if self._account is not None else None,
            lasting=lasting,
        )

    @cached_property
    def _account(self) -> PrivacyAccount | None:
        """The account of the client's privacy; None if it trains without."""
        experiment = self.board.experiment
        variant = experiment.variant(self.client)
        if variant.privacy is None:
            return None
        from fedquilt_client.privacy_account import open_account

        assert self.job is not None  # noqa: S101 - the worker gives it; without it the training would not be private
        check_privacy(experiment, self.board.algorithm, self.learning_task.name, self.board.tools.holdout)
        left = experiment.rounds - self.round + 1
        passes = private_passes(self.board.algorithm, variant.training.epochs, left)
        ids = self.board.sample_ids(self.client, self._samples.raw, stays=self.delivered is None)
        return open_account(self.job, self.board.run.run, experiment, variant.privacy, passes, ids)

    def do(self, task: Task) -> Reply:
        """Do the task and return the reply as it may leave the board.

        Raises:
            FedquiltError: the task cannot be done, or asks for more than may leave the board.
        """
        has_secrets = self.job is not None and self.job.ledgers is not None
        return answer(self, self.board.experiment, self.board.algorithm, task, self._work, has_secrets=has_secrets)

    def _work(self, task: Task) -> Reply:
        return self.withhold(do_work(self.board.experiment.algorithm.name, self.board.algorithm, task, self))

    def withhold(self, reply: Reply) -> Reply:
        """Return the reply as it may leave the board."""
        if self._account is not None:
            return self._account.withhold(reply)
        return replace(reply, weight=1.0) if self.board.is_private else reply

    def spending(self) -> Spending | None:
        """Return what the task has spent of the client's privacy; None for nothing. Raises as ``PrivacyAccount``."""
        return None if self._account is None else self._account.spending()

    @property
    def classes(self) -> int:
        """Number of classes of the data set, or words of its vocabulary; 0 for regression."""
        return self.board.tools.classes

    @property
    def learning_task(self) -> LearningTask:
        """What the model learns to do: its loss and its metrics."""
        return self.board.tools.learning_task

    @property
    def anatomy(self) -> Anatomy:
        """The channel groups of the experiment's model.

        Raises:
            UncuttableModelError: fedquilt cannot cut sub-models from the model.
        """
        return self.board.anatomy

    def fits(self, part: Slice) -> bool:
        """Return whether the board has enough free memory now to train the sub-model ``part``."""
        if self.fitting is not None:  # a replay repeats what the board decided
            return dict(part.shapes) == dict(self.fitting)
        limits = self._limits
        if limits.entries is not None and part.entries > limits.entries:
            return False
        variant = self.board.experiment.variant(self.client)
        # This loads torch and the data set, which take memory themselves.
        need = self.board.training_memory(part, variant.training, private=variant.privacy is not None)
        if need > self.capacity() or (limits.budget is not None and need > limits.budget):
            return False
        self.on_need(need)
        return True

    @cached_property
    def _limits(self) -> RoundLimits:
        """The limits of the client's line of the fleet in this round."""
        line = self.board.experiment.line_of(self.client)
        if line is None:
            return RoundLimits()
        return limits_of(
            line, self.board.experiment.seed, self.round, self.client,
            lambda name: find_level(self.board.algorithm, name, self).entries,
        )  # fmt: skip

    @property
    def memory_changed(self) -> bool:
        """Whether an entry of ``memory``, ``secrets`` or ``optimisers`` was added, replaced or removed."""
        if not {"memory", "secrets", "optimisers"} & self.__dict__.keys():
            return False
        stored, now = self._stored_memory, self.memory_to_store
        return now.keys() != stored.keys() or any(now[key] is not x for key, x in stored.items())
