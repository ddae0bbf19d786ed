"""The experiment file: one YAML page that says everything about a run.

Importing this module is cheap (no numpy, no torch), because an idle agent does so. The agent gets the whole
``Experiment`` as JSON: ``Experiment.model_validate_json(experiment.model_dump_json())`` is equal to
``experiment``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

from fedquilt_common.topics import NAME_PATTERN
from fedquilt_common.types import Precision
from fedquilt_common.yaml_text import dump_yaml

KIB, MIB = 1 << 10, 1 << 20


def _size(value: Any) -> Any:
    """ByteSize takes True for 1 and 1.9 for 1, which are mistakes here."""
    if isinstance(value, bool | float):
        raise PydanticCustomError("size", "must be whole bytes or text such as 256KiB")
    return value


Size = Annotated[ByteSize, BeforeValidator(_size)]
Positive = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Choice(BaseModel):
    """A name and whatever fields the thing of that name has."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]
    name: Annotated[str, Field(min_length=1, max_length=200)]

    def _rest(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Partition(_Section):
    """How samples are shared out. Each client has ``min_samples``, or an equal share if there are too few.

    ``shares``: into how many; the clients have the first of them, one each.
    """

    scheme: Literal["dirichlet", "dirichlet-per-class", "uniform"] = "uniform"
    alpha: Annotated[float, Field(gt=0, le=1e6)] | None = None
    min_samples: Positive = 10
    shares: Positive | None = None

    @model_validator(mode="after")
    def _alpha(self) -> Partition:
        if self.scheme != "uniform" and self.alpha is None:
            raise _invalid([Problem("alpha", None, f"the scheme '{self.scheme}' needs it; try 0.5")])
        if self.scheme == "uniform" and self.alpha is not None:
            raise _invalid([Problem("alpha", self.alpha, "only the scheme 'dirichlet' has it; remove it")])
        return self


class Data(_Section):
    """The data set, and how many clients share it.

    ``holdout``: the part of its samples that each client keeps for testing, so that models are evaluated where the
    clients live; 0: the coordinator evaluates on the official test split; None: as the algorithm has it. ``mixed``:
    the official test split is shared out with the training samples (FedReb thesis, section 5.3).
    """

    set: Annotated[str, Field(min_length=1, max_length=200)]
    clients: Annotated[int, Field(ge=1, le=100_000)]
    partition: Partition = Partition()
    holdout: Annotated[float, Field(ge=0, lt=1)] | None = None
    mixed: bool = False


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


class Participation(_Section):
    """Who takes part in a round, and how long it waits; ``deadline`` in seconds."""

    per_round: Positive
    quorum: Positive
    deadline: Annotated[float, Field(gt=0)] = 60.0
    shortfall: Literal["wait", "replace"] = "wait"


class Training(_Section):
    """A client's work in a round: stochastic gradient descent.

    ``lr`` is multiplied by ``lr_decay`` after each round; ``drop_last`` leaves out an epoch's last batch if it is not
    full and not the only one. ``device: auto`` takes a CUDA device where there is one; other devices, other bits.
    """

    epochs: Positive = 1
    batch: Positive = 32
    lr: Annotated[float, Field(gt=0)] = 0.05
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    drop_last: bool = False
    precision: Literal["fp32", "amp", "fp16", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "cpu"

    def decayed(self, round: int) -> Training:
        """As it stands in ``round`` (from 1): the learning rate is decayed already."""
        return self.model_copy(update={"lr": self.lr * self.lr_decay ** (round - 1), "lr_decay": 1.0})


class Wire(_Section):
    """Number formats down (to the clients) and up, and the size of a chunk in bytes."""

    down: Precision = "fp32"
    up: Precision = "fp32"
    chunk: Annotated[Size, Field(ge=KIB, le=256 * MIB)] = ByteSize(256 * KIB)


class FleetLine(_Section):
    """Agents of one kind. ``clients`` is the line's total, shared out evenly; ``memory`` in bytes.

    ``memory`` is what the agents say they have; ``cpus`` is a share of processors for whoever starts the agents in
    containers. `simulate` starts plain processes and limits neither. ``budget``: bytes that training may take on one
    of these boards; without it, what is free there. With ``profile: private`` they say nothing of their resources.
    """

    kind: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=32)] = "generic"
    agents: Positive = 1
    clients: Positive
    memory: Annotated[Size, Field(ge=MIB)] | None = None
    budget: Annotated[Size, Field(ge=KIB)] | None = None
    profile: Literal["open", "private"] = "open"
    cpus: Annotated[float, Field(gt=0)] | None = None
    workers: Positive = 1


class Experiment(_Section):
    """A whole experiment. What ``participation`` and ``fleet`` leave out follows from ``data.clients``.

    The model is evaluated after every ``evaluate_every``-th round and after the last.
    """

    name: Name
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    rounds: Positive = 10
    evaluate_every: Positive = 1
    data: Data
    model: Model
    algorithm: AlgorithmChoice
    # These two defaults are never seen: _fill_in puts better ones in their place.
    participation: Participation = Participation(per_round=1, quorum=1)
    training: Training = Training()
    wire: Wire = Wire()
    fleet: Annotated[tuple[FleetLine, ...], Field(strict=False, min_length=1)] = (FleetLine(clients=1),)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        clients = _count(raw.get("data"), "clients", 1)
        filled = {"fleet": [{"clients": clients}], "participation": {}, **raw}
        if isinstance(filled["participation"], Mapping):
            per_round = _count(filled["participation"], "per_round", clients)
            filled["participation"] = {
                "per_round": per_round,
                "quorum": per_round,
                **filled["participation"],
            }
        return filled

    @model_validator(mode="after")
    def _check(self) -> Experiment:
        problems = list(_contradictions(self))
        if problems:
            raise _invalid(problems)
        return self


@dataclass(frozen=True)
class Problem:
    """What is wrong at one dotted ``path``."""

    path: str
    value: Any
    why: str


@dataclass(frozen=True)
class AgentSpec:
    """One agent to start: its clients, and what its line of the fleet says of its board."""

    name: str
    kind: str
    clients: tuple[int, ...]
    line: FleetLine

    @property
    def options(self) -> dict[str, str]:
        """For the command that starts it: options by name."""
        line = self.line
        given = {"memory": line.memory, "budget": line.budget, "workers": line.workers, "profile": line.profile}
        return {name: str(int(v)) if isinstance(v, int) else v for name, v in given.items() if v is not None}


def agent_specs(fleet: Sequence[FleetLine]) -> list[AgentSpec]:
    """The agents of the ``fleet`` in its order, with clients numbered from 0; names such as ``strong-0``."""
    specs: list[AgentSpec] = []
    named: Counter[str] = Counter()
    first = 0
    for line in fleet:
        for index in range(line.agents):
            share = line.clients // line.agents + (index < line.clients % line.agents)
            name = f"{line.kind}-{named[line.kind]}"
            clients = tuple(range(first, first + share))
            specs.append(AgentSpec(name, line.kind, clients, line))
            named[line.kind] += 1
            first += share
    return specs


def dump_experiment(experiment: Experiment) -> str:
    """YAML that loads back to an equal experiment, with every default written out."""
    return dump_yaml(experiment.model_dump(mode="json"))


def _count(section: Any, key: str, default: int) -> int:
    """A count that may be invalid, of a section that may be; their own checks report it."""
    found = section.get(key) if isinstance(section, Mapping) else getattr(section, key, None)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 1 else default


def _contradictions(experiment: Experiment) -> Iterator[Problem]:
    clients, part = experiment.data.clients, experiment.participation
    if part.per_round > clients:
        yield Problem("participation.per_round", part.per_round, f"there are {clients} clients (data.clients)")
    if part.quorum > part.per_round:
        yield Problem("participation.quorum", part.quorum, f"only {part.per_round} take part (participation.per_round)")
    shares = experiment.data.partition.shares
    if shares is not None and shares < clients:
        yield Problem("data.partition.shares", shares, f"there are {clients} clients (data.clients), one share each")
    hosted = sum(line.clients for line in experiment.fleet)
    if hosted != clients:
        yield Problem("fleet", f"{hosted} clients", f"its lines must add up to {clients} (data.clients)")
    for index, line in enumerate(experiment.fleet):
        if line.agents > line.clients:
            why = f"more agents than their {line.clients} clients; an agent needs at least one"
            yield Problem(f"fleet.{index}.agents", line.agents, why)


def _invalid(problems: Sequence[Problem]) -> ValidationError:
    """As a pydantic error that keeps each problem's place."""
    details: list[InitErrorDetails] = []
    for problem in problems:
        kind = PydanticCustomError("contradiction", "{why}", {"why": problem.why})
        details.append({"type": kind, "loc": tuple(problem.path.split(".")), "input": problem.value})
    return ValidationError.from_exception_data("Experiment", details)
