"""The sections of an experiment file: pydantic models, each of which checks its own fields.

Importing this module is cheap (no numpy, no torch), because an idle agent imports it.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, JsonValue, model_validator

from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.experiment.section import MIB, Count, Gpus, Many, MemorySize, Section, Size, validation_error
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.rejections import Problem
from fedquilt_common.types import Precision
from fedquilt_common.wire.chunks import LARGEST_CHUNK
from fedquilt_common.wire.link import BOUNDS, Link, open_problem
from fedquilt_common.wire.message_base import Workers
from fedquilt_common.wire.windowed_transfer import TIMEOUT


class _NamedChoice(BaseModel):
    """The name of a model, algorithm or other entry, and its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]
    name: Annotated[str, Field(min_length=1, max_length=200)]

    def _parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Model(_NamedChoice):
    """The model's name, and next to it the parameters of its factory.

    Args:
        name: name of the model, or `package:factory` for your own.
        initialisation: the first numbers of a model's layers. `torch`: torch's defaults. `keras`: those of Keras, such
            as Glorot uniform weights and zero biases.
    """

    initialisation: Literal["torch", "keras"] = "torch"

    @property
    def params(self) -> dict[str, Any]:
        """All keys but the name and the initialisation."""
        return self._parameters()


class AlgorithmChoice(_NamedChoice):
    """The algorithm's name, and next to it its fields.

    Args:
        name: name of the algorithm, or `package:factory` for your own.
    """

    @property
    def fields(self) -> dict[str, Any]:
        """All keys but the name."""
        return self._parameters()


class Participation(Section):
    """The clients of a round, and how long a round waits for them.

    Args:
        per_round: clients drawn for a round, at most `data.clients`.
        ratio: part of the clients that is drawn for a round, instead of `per_round`. A start turns it into `per_round`,
            rounded half up, at least 1.
        quorum: replies that close an exchange after its deadline, at most `participation.per_round`.
        deadline: seconds for which an exchange waits for all replies.
        shortfall: what happens at the deadline without the quorum: `wait` for it, or `replace` clients.
        failures: whether an exchange waits until its deadline for clients that have failed, because they may try again
            (`wait`), or closes as soon as the other clients have replied, if they are a quorum (`skip`).
    """

    per_round: Count
    ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    quorum: Count
    deadline: Annotated[float, Field(gt=0)] = 60.0
    shortfall: Literal["wait", "replace"] = "wait"
    failures: Literal["wait", "skip"] = "wait"

    @model_validator(mode="after")
    def _check_ratio(self) -> Participation:
        if self.ratio is not None:
            why = "participation.per_round is given, too; remove one of the two"
            raise validation_error([Problem("ratio", self.ratio, why)])
        return self


def clients_of_ratio(ratio: float, clients: int) -> int:
    """Return how many of ``clients`` a ratio in (0, 1] draws: rounded half up, at least 1."""
    # The decimal digits as written: 0.29 of 50 clients is 14.5, but the product of the floats is less.
    exact = Decimal(str(ratio)) * clients
    return max(1, int(exact.quantize(Decimal(1), ROUND_HALF_UP)))


class Budget(Section):
    """Limits on what a run spends. It ends as finished after the round in which one of them is used up.

    Args:
        bytes: bytes that the coordinator sends and receives, or a text such as `2GB`.
        joules: energy of all boards. Boards that report none do not count.
        hours: time of the rounds, without the time in which the coordinator does not run.
    """

    bytes: Annotated[Size, Field(ge=1)] | None = None
    joules: Annotated[float, Field(gt=0)] | None = None
    hours: Annotated[float, Field(gt=0)] | None = None


class Wire(Section):
    """Number formats on the wire, and the size of chunks.

    Args:
        down: number format on the way to the clients.
        up: number format on the way from the clients.
        chunk: largest chunk; never more than the broker accepts. Transfers below 12 MiB have chunks of 256 KiB at most.
    """

    down: Precision = "fp32"
    up: Precision = "fp32"
    chunk: Annotated[Size, Field(ge=32, le=256 * MIB)] = ByteSize(LARGEST_CHUNK)


class Variant(Section):
    """A client's own model and training. What it leaves out, it takes from the experiment.

    Args:
        model: the client's model.
        training: the client's training.
        privacy: the client's privacy; null: that of its line.
    """

    model: Model
    training: Training
    privacy: Privacy | None = None


def _bounded(least: float, most: float) -> Any:
    return Field(ge=least, le=most)


_OpenTime = Annotated[tuple[float, float], Field(strict=False)]


class LinkSpec(Section):
    """How narrow and lossy the link to a board is.

    Args:
        rate: bytes a second, in each direction; null: no limit.
        latency: seconds that each packet takes.
        loss: part of the packets that are lost.
        mtu: largest packet in bytes; null: no limit.
        window: packets that are sent before their acknowledgements are awaited (FedAKD thesis, Table 4.4: 3); then no
            chunk is lost. null: nothing is acknowledged, and the protocol repairs lost chunks.
        timeout: seconds after which packets of a window without an acknowledgement are sent again.
        open: the times in which the link is open, such as `[[0, 30], [90, 120]]`, in seconds of each period; null:
            always. `fedquilt bench route` computes them for a drone.
        period: seconds after which the open times repeat; required with `open`. Periods are counted from the start of
            1970, for all boards alike.
    """

    rate: Annotated[float, _bounded(*BOUNDS["rate"])] | None = None
    latency: Annotated[float, _bounded(*BOUNDS["latency"])] = 0.0
    loss: Annotated[float, _bounded(*BOUNDS["loss"])] = 0.0
    mtu: Annotated[int, _bounded(*BOUNDS["mtu"])] | None = None
    window: Annotated[int, _bounded(*BOUNDS["window"])] | None = None
    timeout: Annotated[float, _bounded(*BOUNDS["timeout"])] = TIMEOUT
    open: Annotated[tuple[_OpenTime, ...], Field(strict=False, min_length=1, max_length=1000)] | None = None
    period: Annotated[float, _bounded(*BOUNDS["period"])] | None = None

    @model_validator(mode="after")
    def _check_open(self) -> LinkSpec:
        if problem := open_problem(self.open or (), self.period):
            raise validation_error([Problem("open", [list(pair) for pair in self.open or ()], problem)])
        return self

    def to_link(self, speedup: float) -> Link:
        """Return the link to imitate; ``speedup`` seconds pass on it for each second at the desk."""
        return Link(
            self.rate, self.latency, self.loss, self.mtu, speedup, self.window, self.timeout, self.open or (),
            self.period,
        )  # fmt: skip


Level = Annotated[str, Field(min_length=1, max_length=64)]


class FleetLine(Section):
    """Agents of one kind, which `simulate` starts.

    Args:
        kind: the board's kind; agents are named `<kind>-0`, `<kind>-1` and so on.
        agents: number of agents, at most the line's `clients`.
        clients: number of clients of the line, divided evenly among its agents, in order.
        memory: the memory that the agents report for their boards. `simulate` enforces it with control groups, if
            the user may create them.
        budget: the memory that training may take on one of these boards, by which it chooses what it trains
            (adaptivefl); null: what is free there. A list is a schedule: one entry a round, and again from the first.
        fits: the largest level of AdaptiveFL's pool that the line's clients train, such as `M1`, instead of a budget. A
            list is a schedule.
        uncertainty: standard deviation of what fits a client from round to round, relative to `budget` or `fits`; drawn
            from the run's seed.
        profile: `private`: the agents do not report memory, processor, temperature and load.
        cpus: processors for each agent. `simulate` enforces them as it does `memory`.
        gpus: GPUs for each agent, or below 1 a part of one. Only `simulate --ray` reserves them.
        workers: training processes that an agent runs at a time.
        relay: the agents add up the replies of their clients before they travel; needs `exact_sums`.
        link: the link to these boards that `simulate` and the compose file simulate.
        privacy: the privacy of the line's clients, with the keys of `privacy`; missing ones are the experiment's.
        variants: what the line's clients use in turn, at most one for each client: each has `model`, `training` and
            `privacy`, whose missing keys are the experiment's.
    """

    kind: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=32)] = "generic"
    agents: Count = 1
    clients: Count
    memory: MemorySize | None = None
    budget: Annotated[tuple[MemorySize, ...], Many, Field(strict=False, min_length=1)] | None = None
    fits: Annotated[tuple[Level, ...], Many, Field(strict=False, min_length=1)] | None = None
    uncertainty: Annotated[float, Field(ge=0)] = 0.0
    profile: Literal["open", "private"] = "open"
    cpus: Annotated[float, Field(gt=0)] | None = None
    gpus: Gpus | None = None
    workers: Workers = 1
    relay: bool = False
    link: LinkSpec | None = None
    privacy: Privacy | None = None
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = ()

    @property
    def lasting_budget(self) -> int | None:
        """The budget if it is the same in each round; None: there is none, or it changes."""
        constant = self.budget is not None and len(self.budget) == 1 and not self.uncertainty
        return int(self.budget[0]) if constant and self.budget else None

    @model_validator(mode="after")
    def _check_resources(self) -> FleetLine:
        if self.budget is not None and self.fits is not None:
            raise validation_error([Problem("fits", list(self.fits), "budget is given, too; remove one of the two")])
        if self.uncertainty and self.budget is None and self.fits is None:
            why = "it is relative to a budget or a level; set budget or fits"
            raise validation_error([Problem("uncertainty", self.uncertainty, why)])
        return self
