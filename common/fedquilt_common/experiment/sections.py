"""The sections of an experiment file, as pydantic models, each with its own checks.

Importing this module is cheap (no numpy, no torch), because an idle agent does so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from fedquilt_common.types import Precision
from fedquilt_common.wire.link import BOUNDS, Link
from fedquilt_common.wire.topics import NAME_PATTERN


@dataclass(frozen=True)
class Problem:
    """What is wrong at one dotted ``path``."""

    path: str
    value: Any
    why: str


def invalid(problems: Sequence[Problem]) -> ValidationError:
    """As a pydantic error that keeps each problem's place."""
    details: list[InitErrorDetails] = []
    for problem in problems:
        kind = PydanticCustomError("contradiction", "{why}", {"why": problem.why})
        details.append({"type": kind, "loc": tuple(problem.path.split(".")), "input": problem.value})
    return ValidationError.from_exception_data("Experiment", details)


KIB, MIB = 1 << 10, 1 << 20


def _size(value: Any) -> Any:
    """ByteSize takes True for 1 and 1.9 for 1, which are mistakes here."""
    if isinstance(value, bool | float):
        raise PydanticCustomError("size", "must be whole bytes or text such as 256KiB")
    return value


Size = Annotated[ByteSize, BeforeValidator(_size)]
Positive = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Choice(BaseModel):
    """A name and whatever fields the thing of that name has."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]
    name: Annotated[str, Field(min_length=1, max_length=200)]

    def _rest(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


_SCHEME_FIELDS: Mapping[str, frozenset[str]] = {
    "uniform": frozenset(), "subject": frozenset(), "per-class": frozenset({"per_class", "classes"}),
    "dirichlet": frozenset({"alpha"}), "dirichlet-per-class": frozenset({"alpha"}),
}  # fmt: skip


class Partition(Section):
    """How samples are shared out. Each client has ``min_samples``, or an equal share if there are too few.

    ``shares``: into how many; the clients have the first of them, one each. ``per-class``: each client has
    ``per_class`` samples of each of its classes, of which it has between the two numbers of ``classes``, or all
    (FedAKD thesis, section 3.7.3). ``subject``: each client has one person's samples or those of several.
    """

    scheme: Literal["dirichlet", "dirichlet-per-class", "uniform", "per-class", "subject"] = "uniform"
    alpha: Annotated[float, Field(gt=0, le=1e6)] | None = None
    per_class: Positive | None = None
    classes: Annotated[tuple[Positive, Positive], Field(strict=False)] | None = None
    min_samples: Positive = 10
    shares: Positive | None = None

    @model_validator(mode="after")
    def _fields(self) -> Partition:
        problems = [
            Problem(name, getattr(self, name), f"the scheme '{self.scheme}' does not have it; remove it")
            for name in ("alpha", "per_class", "classes")
            if getattr(self, name) is not None and name not in _SCHEME_FIELDS[self.scheme]
        ]
        if "alpha" in _SCHEME_FIELDS[self.scheme] and self.alpha is None:
            problems.append(Problem("alpha", None, f"the scheme '{self.scheme}' needs it; try 0.5"))
        if "per_class" in _SCHEME_FIELDS[self.scheme] and self.per_class is None:
            problems.append(Problem("per_class", None, f"the scheme '{self.scheme}' needs it; try 20"))
        if self.classes is not None and self.classes[0] > self.classes[1]:
            problems.append(Problem("classes", list(self.classes), "the least comes first, then the most"))
        if problems:
            raise invalid(problems)
        return self


class Public(Section):
    """Samples that coordinator and boards all have; nobody looks at their labels.

    They are ``samples`` of the data set's own training samples, which then no client has; or of the training samples
    of another data ``set``; or of a ``file``, an array of numpy's (.npy) below FEDQUILT_DATA. Without ``samples``,
    all of them.
    """

    set: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    file: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    samples: Positive | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Public:
        if self.set is not None and self.file is not None:
            raise invalid([Problem("file", self.file, "there is a set already; remove one of the two")])
        if self.set is None and self.file is None and self.samples is None:
            raise invalid([Problem("samples", None, "say how many of the training samples are public, such as 100")])
        return self


class Data(Section):
    """The data set, and how many clients share it.

    ``holdout``: the part of its samples that each client keeps for testing, so that models are evaluated where the
    clients live; 0: the coordinator evaluates on the official test split; None: as the algorithm has it. ``mixed``:
    the official test split is shared out with the training samples (FedReb thesis, section 5.3). ``public``: what
    algorithms that exchange soft labels exchange them of.
    """

    set: Annotated[str, Field(min_length=1, max_length=200)]
    clients: Annotated[int, Field(ge=1, le=100_000)]
    partition: Partition = Partition()
    holdout: Annotated[float, Field(ge=0, lt=1)] | None = None
    mixed: bool = False
    public: Public | None = None


class Model(_Choice):
    """The model's name and the parameters of its factory."""

    @property
    def params(self) -> dict[str, Any]:
        """All that stands beside the name."""
        return self._rest()


class AlgorithmChoice(_Choice):
    """The algorithm's name and its fields."""

    @property
    def fields(self) -> dict[str, Any]:
        """All that stands beside the name."""
        return self._rest()


class Participation(Section):
    """Who takes part in a round, and how long it waits; ``deadline`` in seconds."""

    per_round: Positive
    quorum: Positive
    deadline: Annotated[float, Field(gt=0)] = 60.0
    shortfall: Literal["wait", "replace"] = "wait"


class Training(Section):
    """A client's work in a round: gradient descent in batches, with an optimiser that begins anew each time.

    ``optimiser``: as torch has them, with its defaults; ``momentum`` is that of ``sgd``. ``lr`` is multiplied by
    ``lr_decay`` after each round; ``drop_last`` leaves out an epoch's last batch if it is not full and not the only
    one. ``device: auto`` takes a CUDA device where there is one; other devices, other bits.
    """

    epochs: Positive = 1
    batch: Positive = 32
    optimiser: Literal["sgd", "adam", "rmsprop"] = "sgd"
    lr: Annotated[float, Field(gt=0)] = 0.05
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    drop_last: bool = False
    precision: Literal["fp32", "amp", "fp16", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "cpu"

    @model_validator(mode="after")
    def _momentum(self) -> Training:
        if self.momentum and self.optimiser != "sgd":
            raise invalid([Problem("momentum", self.momentum, f"the optimiser '{self.optimiser}' has none; remove it")])
        return self

    def decayed(self, round: int) -> Training:
        """As it stands in ``round`` (from 1): the learning rate is decayed already."""
        return self.model_copy(update={"lr": self.lr * self.lr_decay ** (round - 1), "lr_decay": 1.0})


class Wire(Section):
    """Number formats down (to the clients) and up, and the size of a chunk in bytes."""

    down: Precision = "fp32"
    up: Precision = "fp32"
    chunk: Annotated[Size, Field(ge=32, le=256 * MIB)] = ByteSize(256 * KIB)


class Variant(Section):
    """A client's own model and training."""

    model: Model
    training: Training


def _between(least: float, most: float) -> Any:
    return Field(ge=least, le=most)


class LinkSpec(Section):
    """How narrow and lossy the line to a board is; what is not said is without bound, or 0.

    ``rate`` in bytes a second, in each direction; ``latency`` in seconds; ``loss``: the part of the packets that do not
    arrive; ``mtu``: largest packet in bytes.
    """

    rate: Annotated[float, _between(*BOUNDS["rate"])] | None = None
    latency: Annotated[float, _between(*BOUNDS["latency"])] = 0.0
    loss: Annotated[float, _between(*BOUNDS["loss"])] = 0.0
    mtu: Annotated[int, _between(*BOUNDS["mtu"])] | None = None

    def sped_up(self, times: float) -> Link:
        """The link, with ``times`` as much time passing there as at the desk."""
        return Link(self.rate, self.latency, self.loss, self.mtu, times)


class FleetLine(Section):
    """Agents of one kind. ``clients`` is the line's total, shared out evenly; ``memory`` in bytes.

    ``memory`` is what the agents say they have; ``cpus`` is a share of processors for whoever starts the agents in
    containers. `simulate` starts plain processes and limits neither. ``budget``: bytes that training may take on one
    of these boards; without it, what is free there. With ``profile: private`` they say nothing of their resources.
    ``link``: how these boards are reached, which ``simulate`` imitates. ``variants``: models and trainings that differ
    from the experiment's; the line's clients have them in turn. What a variant leaves out is the experiment's.
    """

    kind: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=32)] = "generic"
    agents: Positive = 1
    clients: Positive
    memory: Annotated[Size, Field(ge=MIB)] | None = None
    budget: Annotated[Size, Field(ge=KIB)] | None = None
    profile: Literal["open", "private"] = "open"
    cpus: Annotated[float, Field(gt=0)] | None = None
    workers: Positive = 1
    link: LinkSpec | None = None
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = ()
