"""The experiment file: one YAML page that says everything about a run.

Importing this module is cheap (no numpy, no torch), because an idle agent does so. The agent gets the whole
``Experiment`` as JSON: ``Experiment.model_validate_json(experiment.model_dump_json())`` is equal to
``experiment``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, model_validator

from fedquilt_common.experiment.sections import (
    AlgorithmChoice,
    Data,
    FleetLine,
    Model,
    Name,
    Participation,
    Positive,
    Problem,
    Section,
    Training,
    Variant,
    Wire,
    invalid,
)
from fedquilt_common.files.yaml_text import dump_yaml
from fedquilt_common.wire.link import BOUNDS, Link


class Experiment(Section):
    """A whole experiment. What `participation` and `fleet` leave out follows from `data.clients`.

    Args:
        name: name of the run; its folder is `runs/<name>` unless you give `--out`.
        seed: source of all randomness of the run.
        rounds: number of rounds.
        evaluate_every: evaluate the global model every N rounds, and after the last.
        speedup: speed of time on simulated links and for deadlines; 200 is 200 times as fast.
        data: the data set, and how its samples are divided.
        model: the model and its parameters.
        algorithm: the algorithm and its fields.
        participation: the clients of a round, and how long it waits for them.
        training: the clients' gradient descent.
        wire: number formats on the wire, and the size of chunks.
        fleet: the agents that `simulate` starts; their `clients` add up to `data.clients`.
    """

    name: Name
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    rounds: Positive = 10
    evaluate_every: Positive = 1
    speedup: Annotated[float, Field(ge=BOUNDS["speedup"][0], le=BOUNDS["speedup"][1])] = 1.0
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
        if isinstance(filled["fleet"], list | tuple):
            filled["fleet"] = [_with_variants(line, raw) for line in filled["fleet"]]
        return filled

    @model_validator(mode="after")
    def _check(self) -> Experiment:
        problems = list(_contradictions(self))
        if problems:
            raise invalid(problems)
        return self

    @property
    def usual(self) -> Variant:
        """The model and training of clients that have no variant, and of the coordinator."""
        return Variant(model=self.model, training=self.training)

    @property
    def models(self) -> list[Model]:
        """The different models that clients have, in the order of the clients."""
        each = (one.model for line in self.fleet for one in line.variants[: line.clients] or (self.usual,))
        return list({model.model_dump_json(): model for model in each}.values())

    @property
    def chunk(self) -> int:
        """Largest chunk in bytes: that of ``wire``, or less, so that it fits a packet of every link that loses packets;
        one of many packets would hardly ever get through."""
        lossy = [line.link.sped_up(1.0).payload for line in self.fleet if line.link is not None and line.link.loss]
        return min([int(self.wire.chunk), *(size for size in lossy if size is not None)])

    def variant(self, client: int) -> Variant:
        """A client's model and training."""
        first = 0
        for line in self.fleet:
            if client < first + line.clients and line.variants:
                return line.variants[(client - first) % len(line.variants)]
            first += line.clients
            if client < first:
                break
        return self.usual


@dataclass(frozen=True)
class AgentSpec:
    """One agent to start: its clients, what its line of the fleet says of its board, and the link to imitate."""

    name: str
    kind: str
    clients: tuple[int, ...]
    line: FleetLine
    link: Link | None = None

    @property
    def options(self) -> dict[str, str]:
        """For the command that starts it: options by name."""
        line = self.line
        link = self.link.encode() if self.link else None
        given = {
            "link": link,
            "memory": line.memory,
            "budget": line.budget,
            "workers": line.workers,
            "profile": line.profile,
        }
        return {name: str(int(v)) if isinstance(v, int) else v for name, v in given.items() if v is not None}


def agent_specs(fleet: Sequence[FleetLine], speedup: float = 1.0) -> list[AgentSpec]:
    """The agents of the ``fleet`` in its order, with clients numbered from 0; names such as ``strong-0``.

    ``speedup``: how fast time passes on their links.
    """
    specs: list[AgentSpec] = []
    named: Counter[str] = Counter()
    first = 0
    for line in fleet:
        for index in range(line.agents):
            share = line.clients // line.agents + (index < line.clients % line.agents)
            name = f"{line.kind}-{named[line.kind]}"
            clients = tuple(range(first, first + share))
            link = line.link.sped_up(speedup) if line.link else None
            specs.append(AgentSpec(name, line.kind, clients, line, link))
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


def _with_variants(line: Any, raw: Mapping[str, Any]) -> Any:
    """``line`` with what its variants leave out; what is not of the right kind is left for its own check."""
    if not isinstance(line, Mapping) or not isinstance(line.get("variants"), list | tuple):
        return line
    return {**line, "variants": [_completed(variant, raw) for variant in line["variants"]]}


def _completed(variant: Any, raw: Mapping[str, Any]) -> Any:
    if not isinstance(variant, Mapping):
        return variant
    own, usual = variant.get("training", {}), raw.get("training", {})
    if not isinstance(own, Mapping) or not isinstance(usual, Mapping):
        return variant
    if own.get("optimiser", "sgd") != "sgd":
        usual = {key: value for key, value in usual.items() if key != "momentum"}  # which only sgd has
    return {"model": raw.get("model"), **variant, "training": {**usual, **own}}


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
        if len(line.variants) > line.clients:
            why = f"more than the line's {line.clients} clients, so that the last of them would be nobody's"
            yield Problem(f"fleet.{index}.variants", f"{len(line.variants)} variants", why)
