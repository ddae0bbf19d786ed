"""The seam between an algorithm and fedquilt: what both halves of an algorithm get, and what they return.

Only annotations need numpy here, so that importing this module costs an idle agent nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fedquilt_common.types import Arrays, ClientId, Examples, Profile, Scalar, Shapes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedquilt_common.submodels.heads import Head, TwoHeads
    from fedquilt_common.submodels.slices import Anatomy, Slice

    Part: TypeAlias = Slice | Head | TwoHeads


@dataclass(frozen=True)
class Task:
    """What one client is asked to do in an exchange.

    ``arrays`` is what it is sent; tasks that hold the same ``arrays`` object share one publication. With a ``slice``
    a client is sent only its part of them: on the server ``arrays`` are the whole model's, on the client the part's.
    ``expect`` gives the shapes of the reply's arrays, or several of which the reply must have one; None means those
    of what was sent. ``dtypes``: numpy's names of those that are neither fp32 nor sent. ``metrics``: those that the
    reply must have, and between which bounds, both included. ``labels``: what is sent, and what is expected, are soft
    labels of the public samples.
    """

    kind: str
    arrays: Arrays = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    expect: Shapes | tuple[Shapes, ...] | None = None
    slice: Slice | None = None
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    labels: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What a client sends back. ``weight`` is its number of training samples unless the algorithm says otherwise."""

    arrays: Arrays
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """What the server half keeps from round to round: the global model, and whatever else it must remember.

    ``report``: facts of the round for its row in ``result.json``, such as who trained which sub-model; JSON values.
    ``scores``: what the clients have measured of it; without, the coordinator evaluates it. Neither is part of what a
    next round starts from.
    """

    arrays: Arrays
    extra: Arrays = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingResult:
    """What training gives back: new arrays in fp32, mean loss of the last epoch, seconds of wall clock, steps taken."""

    arrays: Arrays
    loss: float
    seconds: float
    steps: int


@dataclass(frozen=True)
class TrainingPhase:
    """Training on ``data`` with an optimiser of its own; ``only``: the arrays that are trained, None means all.

    ``anneal``: the learning rate falls to 0 along half a cosine. With ``watch``, samples that are not trained on, the
    training ends when ``patience`` epochs in a row have not lowered their loss, and gives back the best arrays.
    """

    data: Examples
    loss: Loss | None = None
    only: Collection[str] | None = None
    penalty: Penalty | None = None
    anneal: bool = False
    watch: Examples | None = None
    patience: int = 1


class Learner(Protocol):
    """Trains and evaluates a model given as arrays, or a ``part`` of it: a sub-model, the head, or the model with a
    second head. The torch one is in ``learner.py``."""

    @property
    def parameters(self) -> frozenset[str]: ...
    @property
    def epochs(self) -> int: ...

    def init(self, seed: int) -> dict[str, NDArray[Any]]: ...

    def with_settings(self, **changes: Any) -> Learner: ...

    def head(self, layers: int) -> Sequence[str]: ...

    def train(
        self,
        arrays: Arrays,
        data: Examples,
        *,
        seed: int,
        penalty: Penalty | None = None,
        loss: Loss | None = None,
        part: Part | None = None,
        only: Collection[str] | None = None,
        epochs: int | None = None,
    ) -> TrainingResult: ...

    def train_in_turn(
        self,
        arrays: Arrays,
        phases: Sequence[TrainingPhase],
        schedule: Sequence[int],
        *,
        seed: int,
        part: Part | None = None,
    ) -> TrainingResult: ...

    def evaluate(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, float]: ...

    def predict(self, arrays: Arrays, data: Examples, part: Part | None = None) -> list[NDArray[np.float32]]: ...

    def features(self, arrays: Arrays, data: Examples, head_layers: int) -> Examples: ...

    def statistics(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, NDArray[Any]]: ...


class Loss(Protocol):
    """What is minimised instead of cross entropy or the squared error: (outputs, targets) -> scalar tensor.

    Outputs are logits of shape (n, classes), or a list of such for a model with several exits.
    """

    def __call__(self, outputs: Any, targets: Any) -> Any: ...


class Penalty(Protocol):
    """A term added to each batch's loss: (parameters by name, the same before training) -> scalar tensor."""

    def __call__(self, now: Mapping[str, Any], start: Mapping[str, Any]) -> Any: ...


class ServerTools(Protocol):
    """What the coordinator makes of the experiment; each is made when it is first asked for."""

    @property
    def anatomy(self) -> Anatomy: ...
    @property
    def parameters(self) -> frozenset[str]: ...
    @property
    def classes(self) -> int: ...
    @property
    def public(self) -> NDArray[Any]: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def prototypes(self) -> Sequence[Learner]: ...
    def prototype_of(self, client: ClientId) -> int: ...
    def evaluate(
        self, arrays: Arrays, part: Slice | None = None, learner: Learner | None = None
    ) -> dict[str, float]: ...


class ServerContext(ServerTools, Protocol):
    """All that the server half of an algorithm may touch in one round."""

    @property
    def round(self) -> int: ...
    @property
    def fleet(self) -> Mapping[ClientId, Profile]: ...
    @property
    def rng(self) -> np.random.Generator: ...
    @property
    def rounds(self) -> int: ...
    @property
    def clients(self) -> int: ...
    @property
    def per_round(self) -> int: ...
    @property
    def measures(self) -> bool: ...
    @property
    def seed(self) -> int: ...
    def select(self) -> Sequence[ClientId]: ...


class ClientContext(Protocol):
    """All that the client half of an algorithm may touch in one task."""

    @property
    def client(self) -> ClientId: ...
    @property
    def seed(self) -> int: ...
    @property
    def data(self) -> Examples: ...
    @property
    def test(self) -> Examples: ...
    @property
    def lasting_seed(self) -> int: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def memory(self) -> dict[str, NDArray[Any]]: ...
    @property
    def round(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def anatomy(self) -> Anatomy: ...
    @property
    def public(self) -> NDArray[Any]: ...
    def fits(self, part: Slice) -> bool: ...


Round = Generator[Mapping[ClientId, Task], Mapping[ClientId, Reply], State]


class Algorithm(Protocol):
    """Both halves of a federated algorithm; a frozen dataclass whose fields are its hyper-parameters."""

    def init(self, model: Arrays, ctx: ServerContext) -> State: ...
    def round(self, state: State, ctx: ServerContext) -> Round: ...
    def work(self, task: Task, ctx: ClientContext) -> Reply: ...
    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]: ...
