"""The records that travel between the two halves of an algorithm, and what the server half keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, Literal

from fedquilt_common.algorithm_api.hooks import find_override
from fedquilt_common.types import Arrays, ClientId, ExchangeId, Scalar, Shapes

if TYPE_CHECKING:
    from fedquilt_common.submodels.slices import Slice

FITS: Final = "fits"
"""Metric of an empty reply of a client that has not trained: the number of the sub-model that fits its board."""
NOTHING_FITS: Final = -1
"""The metric ``fits`` of a board that no sub-model fits."""
CLIENT_METHODS: Final = ("work", "train", "test", "label_samples", "learn_labels", "learn_public")
"""The methods of the client half, of our algorithms and of those that derive from them."""
UNTESTED: Final = "untested"
"""Metric of a reply whose ``accuracy``, a weight, is 0 because the client has no test samples."""


@dataclass(frozen=True)
class Task:
    """The request to one client in an exchange.

    Attributes:
        kind: names the work; the algorithm's ``work`` reads it, such as ``train`` or ``evaluate``. Up to 64 letters,
            digits, ``_``, ``.`` and ``-``.
        arrays: what the client receives. Tasks that hold the same object share one publication. On the server they have
            the shapes of the whole model. With ``slice``, the client receives only its entries, in the sub-model's
            shapes.
        scalars: further values by name, sent as they are; numbers are finite.
        expect: shapes of the reply's arrays by name. A tuple lists alternatives, of which the reply must have one.
            None: the shapes that the client received.
        slice: the sub-model that the client receives; None: everything.
        metrics: metrics that the reply must have, each with its least and its greatest value, both allowed.
        labels: whether ``arrays`` and the reply's arrays are soft labels of the public samples.
        dtypes: numpy's dtype names of reply arrays that are neither in ``arrays`` nor float32.
        lasting: the round waits for a quorum of replies, and does not start again when the deadline passes.
        summed: replies may travel as a partial sum of several clients' replies. The coordinator sets it.
    """

    kind: str
    arrays: Arrays = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    expect: Shapes | tuple[Shapes, ...] | None = None
    slice: Slice | None = None
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    labels: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)
    lasting: bool = False
    summed: bool = False


class Ask(dict[ClientId, Task]):
    """The tasks of an exchange that does not wait for all replies.

    The exchange closes with the first ``until`` replies. The other clients go on with their tasks, and their replies
    come with those of a later ``Ask``. An exchange without it ends all tasks that still go on: a board leaves such a
    task at its next step of training.

    Args:
        tasks: the new tasks; a client that is asked again leaves the task that it still works on. Empty: only wait for
            the clients that were asked before.
        until: replies that close the exchange, to these tasks or to earlier ones. The replies of all clients that were
            asked close it, too, and after ``participation.deadline`` a quorum of them does. A client that failed counts
            as one without a reply.

    Raises:
        ValueError: ``until`` is not an integer, or is less than 1.
    """

    def __init__(self, tasks: Mapping[ClientId, Task], until: int) -> None:
        if isinstance(until, bool) or not isinstance(until, Integral):
            raise ValueError(f"Ask.until = {until!r}: the number of replies that close the exchange is an integer")
        if until < 1:
            raise ValueError(f"Ask.until = {until}: an exchange needs at least one reply")
        super().__init__(tasks)
        self.until: int = int(until)


@dataclass(frozen=True)
class Reply:
    """A client's answer to a task.

    Attributes:
        arrays: in the shapes that ``Task.expect`` gives; read from disk when they are accessed.
        weight: the client's weight in averages, above 0 and at most 1e12: its number of training samples, unless the
            algorithm sets another.
        metrics: at most 64 finite numbers by name. The coordinator reads ``loss`` and ``train_seconds`` (in seconds).
            The agent adds ``joules``, ``memory_peak`` and ``gpu_memory_peak`` (in bytes) if the name and a place are
            free.
        asked: round and exchange of the task that it answers. The coordinator sets it; it is earlier than the open
            exchange only where tasks go on (``Ask``).
    """

    arrays: Arrays
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    asked: ExchangeId = (0, 0)


@dataclass(frozen=True)
class State:
    """What the server half keeps from round to round.

    Attributes:
        arrays: the global model, in the model's shapes; empty for algorithms that have none.
        extra: further arrays of any shape that the next round needs. Floating-point ones are stored in float32 between
            rounds; signed integers, uint8 and bool keep their dtype and every digit.
        report: facts of this round for its row in ``result.json``, as JSON values; numbers are finite. Names that have
            a field of their own there, such as ``trained``, fill it, and the others are in its ``report``. No round
            starts from them.
        parts: the sub-model of each client whose update is averaged in these arrays; empty if clients train the whole
            model. For the coverage of the model; no round starts from them.
        apart: the sub-model of each client whose update went into another model than these arrays, for the costs of
            training; no round starts from them.
        scores: what the clients measured of this state. Empty: the coordinator calls ``Algorithm.evaluate``.
    """

    arrays: Arrays
    extra: Arrays = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[ClientId, Slice] = field(default_factory=dict)
    apart: Mapping[ClientId, Slice] = field(default_factory=dict)


@dataclass(frozen=True)
class Declaration:
    """What an algorithm declares about its models in its class attribute ``declares``; these are not hyper-parameters.

    A derived class inherits it, but some fields say something of methods: ``pooled`` of those of the server half, and
    ``privacy``, ``private_memory`` and ``sends_memory`` of those of the client half. A class that overrides such a
    method repeats the declaration, as in ``declares = FedAvg.declares``, or counts as one without these fields.

    Attributes:
        holdout: share of its samples, in [0, 1), that each client keeps for testing where the experiment does not set
            ``data.holdout``. None: the clients do not evaluate; the coordinator does, on the data set's test split.
        own_models: each client holds a model that only it can evaluate, so the clients evaluate in any case.
        any_models: clients may have models of different architectures (``fleet.variants``).
        coordinator_tests: beside the clients' models there is a global one, which the coordinator evaluates on the
            official test samples.
        tasks: names of the learning tasks that the algorithm can do, such as ``classification``; None: all.
        privacy: why the algorithm cannot train with differential privacy. Empty: it can, because its replies reveal
            of the samples only what its training reveals. None: unknown, so it cannot.
        pooled: why the server half needs the clients' single replies. Empty: of the replies that have arrays it reads
            only the weighted mean, with the weights of ``reply_weight``, and which clients replied. Then the
            coordinator can add noise to the mean (central differential privacy), and clients can hide their replies
            in a sum (secure aggregation). None: unknown.
        sub_models: whether clients may train sub-models: ``none``; ``averaged`` into one model; or ``separate``, each
            width by itself. With them, the coordinator refuses a model that cannot be cut before the run starts, and
            reports what of the model stays whole.
        tests_updates: clients test what they have trained, so those that keep no samples for testing need the official
            ones.
        private_memory: whether clients keep arrays in ``ClientContext.memory`` from task to task. A board that is
            lost takes them along. None: unknown.
        sends_memory: whether what clients send depends on that memory, and so on when they were asked before. Central
            differential privacy then counts without amplification by sampling. No matter without private memory.
        public: whether the algorithm uses the public samples (``data.public``). Without that, a run that has some logs
            a warning. None: unknown.
        measures_norms: clients measure the statistics of static batch norms (``Learner.statistics``). Without that, an
            evaluation uses those of its batches of test samples, and a run with such norms logs a warning.
    """

    holdout: float | None = None
    own_models: bool = False
    any_models: bool = False
    coordinator_tests: bool = False
    tasks: frozenset[str] | None = None
    privacy: str | None = None
    pooled: str | None = None
    sub_models: Literal["none", "averaged", "separate"] = "none"
    tests_updates: bool = False
    private_memory: bool | None = None
    sends_memory: bool = True
    public: bool | None = None
    measures_norms: bool = False


def declaration_of(algorithm: object) -> Declaration:
    """Return what an algorithm declares, without what it inherits of memory for a client half of its own.

    Args:
        algorithm: its class attribute ``declares`` is optional; without it the default ``Declaration`` applies.
    """
    declared: Declaration = getattr(algorithm, "declares", Declaration())
    if find_override(algorithm, ("declares",), CLIENT_METHODS) is None:
        return declared
    return replace(declared, private_memory=declared.private_memory or None, sends_memory=True)
