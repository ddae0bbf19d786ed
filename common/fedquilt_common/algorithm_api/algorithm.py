"""An algorithm, and the contexts that its server half and its client half may touch."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from fedquilt_common.algorithm_api.learner import Learner
from fedquilt_common.algorithm_api.records import Ask, Reply, State, Task
from fedquilt_common.errors import AlgorithmError, RunFailedError
from fedquilt_common.types import Arrays, ClientId, Examples, ExchangeId, Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedquilt_common.learning_tasks.learning_task import LearningTask
    from fedquilt_common.submodels.slices import Anatomy, Slice

Round = Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]
"""One round: each ``yield`` is an exchange (tasks out, replies back), the return value is the next state."""
MOST_EMPTY: Final = 10_000
"""Most exchanges in a row that ask nobody: a round with more of them would not end."""


def advance_round(
    round: Round, replies: Mapping[ClientId, Reply] | None, working: Collection[ClientId] = ()
) -> Mapping[ClientId, Task] | State:
    """Let a round continue until it asks a client, or ends. Where nobody can reply, it gets no replies at once.

    Args:
        round: a generator that ``Algorithm.round`` returned.
        replies: to its last tasks; None: it has not begun.
        working: clients that still work on a task of an earlier exchange.

    Returns:
        The tasks of its next exchange, which somebody can answer, or the state with which it ends.

    Raises:
        AlgorithmError: the round yields ``MOST_EMPTY`` empty mappings in a row.
    """
    empty = 0
    try:
        tasks = next(round) if replies is None else round.send(replies)
        while not tasks and not (isinstance(tasks, Ask) and working):
            if (empty := empty + 1) > MOST_EMPTY:
                raise AlgorithmError(
                    f"the algorithm's method `round` has yielded {MOST_EMPTY:,} empty mappings in a row: yield tasks, "
                    "or return a State"
                )
            tasks = round.send({})
    except StopIteration as done:
        state: State = done.value
        return state
    return tasks


def advance_full_round(round: Round, replies: Mapping[ClientId, Reply] | None) -> Mapping[ClientId, Task] | State:
    """Let a round continue in which each exchange needs all replies; otherwise as ``advance_round``.

    Args:
        round: a generator that ``Algorithm.round`` returned.
        replies: to its last tasks; None: it has not begun.

    Raises:
        RunFailedError: the round asks for the first replies only.
    """
    tasks = advance_round(round, replies)
    if isinstance(tasks, Ask):
        raise RunFailedError(
            f"the algorithm asks for the first {tasks.until} replies (Ask), but secure aggregation, exact sums "
            "and central differential privacy need those of all clients; its `declares` must say so in `pooled`"
        )
    return tasks


class Algorithm(Protocol):
    """Both halves of a federated algorithm: a frozen dataclass whose fields are its hyper-parameters.

    The server half is ``init``, ``round`` and ``evaluate``; it runs in the coordinator. The client half is ``work``; it
    runs on the board. Both sides build the same object from the algorithm's name and fields. The class attribute
    ``declares: ClassVar[Declaration]`` is optional; without it the coordinator evaluates one model for all clients.
    """

    def init(self, model: Arrays, ctx: ServerContext) -> State:
        """Return the state before round 1.

        Args:
            model: the initial global model, in the model's shapes.
            ctx: the server context of round 0.

        Raises:
            FedquiltError: the experiment's model or data set does not suit the algorithm.
        """

    def round(self, state: State, ctx: ServerContext) -> Round:
        """Run one round as a generator: yield the tasks of each exchange, receive the replies, return the next state.

        After a restart the round runs again with the stored replies. It must therefore depend on its arguments only,
        and draw random numbers from ``ctx.rng`` only.

        Args:
            state: what the round before returned, or ``init``.
            ctx: the server context of this round.

        Returns:
            A generator. It yields a task for each client that takes part, and receives a reply for each client that
            answered in time, at least one. With an ``Ask`` it can go on before all have answered. A round may ask
            nobody: a ``yield`` of an empty mapping receives an empty mapping at once, and a generator may end without
            any ``yield``. Neither publishes nor waits for anything.
        """

    def work(self, task: Task, ctx: ClientContext) -> Reply:
        """Do one task on the client's board.

        A task can run more than once; the same input must give the same reply to the bit.

        Args:
            task: what the server half yielded; with a ``slice``, its arrays have the sub-model's shapes.
            ctx: the client context of this task.

        Returns:
            The reply, with arrays in the shapes that ``task.expect`` gives.
        """

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        """Return scores of the global model, such as ``accuracy``, ``r2`` and ``loss``.

        The coordinator calls it for states without ``scores``.

        Args:
            state: the arrays and extra arrays of the state to evaluate. It has no report and no parts, because it may
                have been read back from disk.
            ctx: the server context of its round.

        Returns:
            Scores by name; empty where there is no global model. The call may run in another thread while boards work
            on the next round.
        """


class ServerTools(Protocol):
    """What the coordinator derives from the experiment; each item is made when it is first used."""

    @property
    def anatomy(self) -> Anatomy:
        """The channel groups of the experiment's model.

        Raises:
            UncuttableModelError: fedquilt cannot cut sub-models from the model.
        """

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the model's arrays that training changes; the others are buffers."""

    @property
    def classes(self) -> int:
        """Number of classes of the data set, or words of its vocabulary; 0 for regression."""

    @property
    def learning_task(self) -> LearningTask:
        """What the model learns to do: its loss and its metrics."""

    @property
    def public(self) -> NDArray[Any]:
        """The public set that coordinator and boards share, shape (n, *input_shape), in the data set's dtype.

        Raises:
            ExperimentError: the experiment has no public set, or it does not fit the data set.
            DataUnavailableError: its files are missing or damaged.
        """

    @property
    def learner(self) -> Learner:
        """Trains and evaluates the experiment's model on the coordinator."""

    @property
    def prototypes(self) -> Sequence[Learner]:
        """A learner for each different model that clients have, in the order of the clients."""

    @property
    def spare_test(self) -> Examples:
        """Samples for testing of the shares that no client has (``data.partition.shares``), shape (n, *input_shape).

        n can be 0.
        """

    def prototype_of(self, client: ClientId) -> int:
        """Return the position in ``prototypes`` of a client's model.

        Args:
            client: a client of the experiment, from 0.
        """

    def evaluate(self, arrays: Arrays, part: Slice | None = None, learner: Learner | None = None) -> dict[str, float]:
        """Score a model on the data set's test split.

        Args:
            arrays: in the shapes of the model or of ``part``.
            part: the sub-model that the arrays belong to; None: the whole model.
            learner: evaluates another model, such as one of ``prototypes``; None: the experiment's.

        Returns:
            The scores of the learning task, such as ``accuracy`` or ``r2``.

        Raises:
            ExperimentError: the clients train on the test split (``data.mixed``).
        """


class ServerContext(ServerTools, Protocol):
    """All that the server half of an algorithm may touch in one round."""

    @property
    def round(self) -> int:
        """The round's number, from 1; 0 in ``Algorithm.init``."""

    @property
    def fleet(self) -> Mapping[ClientId, Profile]:
        """The clients that can take part now, with the profile of their board."""

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers that depend on the run's seed and the round only."""

    @property
    def rounds(self) -> int:
        """Number of rounds of the run."""

    @property
    def clients(self) -> int:
        """Number of clients of the experiment."""

    @property
    def per_round(self) -> int:
        """Number of clients that take part in a round (``participation.per_round``)."""

    @property
    def measures(self) -> bool:
        """Whether the clients evaluate at the end of this round."""

    @property
    def opened(self) -> float:
        """Unix time in seconds at which the round opened, or last started again; the same after a crash."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def working(self) -> Mapping[ClientId, ExchangeId]:
        """The clients that still work on a task of an earlier round (``Ask``), with its round and exchange."""

    def select(self) -> Sequence[ClientId]:
        """Draw the clients of this round: ``per_round`` of the fleet, uniformly, in client order."""


class ClientContext(Protocol):
    """All that the client half of an algorithm may touch in one task."""

    @property
    def client(self) -> ClientId:
        """The client's number, from 0."""

    @property
    def seed(self) -> int:
        """Seed of this task: depends on the run's seed, round, exchange and client."""

    @property
    def data(self) -> Examples:
        """The client's training samples; ``x`` has shape (n, *input_shape)."""

    @property
    def test(self) -> Examples:
        """The client's samples for testing, shape (n, *input_shape); n can be 0.

        Where the clients evaluate without keeping any, these are official test samples: all, or those of its classes
        (``data.local_test``).
        """

    @property
    def lasting_seed(self) -> int:
        """Seed of the client that is the same in every round."""

    @property
    def learner(self) -> Learner:
        """Trains and evaluates the client's model, with the training settings of this round."""

    def first_model(self) -> Arrays:
        """Return the initial model of the run: the global model before round 1, in the model's shapes.

        The board makes it from the run's seed. It is the coordinator's to the bit on machines of the same kind.
        """

    @property
    def memory(self) -> dict[str, NDArray[Any]]:
        """The client's private arrays of any shape, kept from task to task on its board.

        Add, replace and remove entries; the arrays themselves are read-only. Changes are stored with the reply.
        """

    @property
    def round(self) -> int:
        """The round's number, from 1."""

    @property
    def classes(self) -> int:
        """Number of classes of the data set, or words of its vocabulary; 0 for regression."""

    @property
    def learning_task(self) -> LearningTask:
        """What the model learns to do: its loss and its metrics."""

    @property
    def anatomy(self) -> Anatomy:
        """The channel groups of the experiment's model.

        Raises:
            UncuttableModelError: fedquilt cannot cut sub-models from the model.
        """

    @property
    def public(self) -> NDArray[Any]:
        """The public set that coordinator and boards share, shape (n, *input_shape), in the data set's dtype.

        Raises:
            DataUnavailableError: its files are missing or damaged, or differ from the coordinator's.
        """

    def fits(self, part: Slice) -> bool:
        """Return whether the board has enough free memory now to train a sub-model.

        Args:
            part: a sub-model of the experiment's model.
        """
