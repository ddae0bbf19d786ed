"""The experiment: everything about a run, read from one YAML file.

Importing this module is cheap (no numpy, no torch), because an idle agent imports it. The agent receives the whole
``Experiment`` as JSON: ``Experiment.model_validate_json(experiment.model_dump_json())`` is equal to ``experiment``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedquilt_common.experiment.data_section import Data
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.experiment.section import Count, Section, validation_error
from fedquilt_common.experiment.sections import (
    AlgorithmChoice,
    Budget,
    FleetLine,
    Model,
    Participation,
    Variant,
    Wire,
    clients_of_ratio,
)
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.files.yaml_text import dump_yaml
from fedquilt_common.rejections import Problem
from fedquilt_common.wire.link import BOUNDS, Link
from fedquilt_common.wire.message_base import Name


class Experiment(Section):
    """A whole experiment. What `participation` and `fleet` leave out follows from `data.clients`.

    Args:
        name: name of the run; its folder is `runs/<name>` unless you give `--out`.
        seed: source of all randomness of the run.
        rounds: number of rounds.
        evaluate_every: evaluate the global model every N rounds, and after the last.
        on_divergence: what happens when the loss explodes, the accuracy stays at chance level or no sub-model fits any
            board: `warn`, or `stop` the run as failed.
        budget: limits after which the run ends before its last round.
        speedup: speed of time on simulated links and for deadlines; 200 is 200 times as fast.
        data: the data set, and how its samples are divided.
        model: the model and its parameters.
        algorithm: the algorithm and its fields.
        participation: the clients of a round, and how long it waits for them.
        training: the clients' gradient descent.
        privacy: differential privacy of the clients' samples, or of whole clients; null: none.
        secure_aggregation: clients hide their replies in a sum, so the coordinator learns only the mean of those with
            arrays. `participation.quorum` clients must stay until the end of a round.
        exact_sums: means have the same bits however replies are grouped, so agents may add replies up before they
            travel (`fleet.relay`). An algorithm that needs each reply gets each, and a warning says so.
        wire: number formats on the wire, and the size of chunks.
        fleet: the agents that `simulate` starts, by default one with all clients. The lines' `clients` add up to
            `data.clients`.
    """

    name: Name
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    rounds: Count = 10
    evaluate_every: Count = 1
    on_divergence: Literal["warn", "stop"] = "warn"
    budget: Budget = Budget()
    speedup: Annotated[float, Field(ge=BOUNDS["speedup"][0], le=BOUNDS["speedup"][1])] = 1.0
    data: Data
    model: Model
    algorithm: AlgorithmChoice
    # The defaults of participation and fleet are placeholders: _fill_in replaces them by ones for data.clients.
    participation: Participation = Participation(per_round=1, quorum=1)
    training: Training = Training()
    privacy: Privacy | None = None
    secure_aggregation: bool = False
    exact_sums: bool = False
    wire: Wire = Wire()
    fleet: Annotated[tuple[FleetLine, ...], Field(strict=False, min_length=1)] = (FleetLine(clients=1),)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        clients = _read_count(raw.get("data"), "clients", 1)
        filled = {"fleet": [{"clients": clients}], "participation": {}, **raw}
        if isinstance(filled["participation"], Mapping):
            given = _resolve_ratio(filled["participation"], clients)
            per_round = _read_count(given, "per_round", clients)
            filled["participation"] = {"per_round": per_round, "quorum": per_round, **given}
        if isinstance(filled["fleet"], list | tuple):
            filled["fleet"] = [_complete_line(line, raw) for line in filled["fleet"]]
        return filled

    @model_validator(mode="after")
    def _check(self) -> Experiment:
        problems = list(_find_contradictions(self))
        if problems:
            raise validation_error(problems)
        return self

    @property
    def default_variant(self) -> Variant:
        """Model and training of the coordinator and of clients without a variant."""
        return Variant(model=self.model, training=self.training, privacy=self._local_privacy)

    @property
    def _local_privacy(self) -> Privacy | None:
        return self.privacy if self.privacy is not None and self.privacy.mode == "local" else None

    @property
    def central_privacy(self) -> Privacy | None:
        """The privacy that the coordinator adds to the mean of the updates; None without."""
        return self.privacy if self.privacy is not None and self.privacy.mode == "central" else None

    @property
    def models(self) -> list[Model]:
        """The distinct models of the clients, in the order of the clients."""
        return list({variant.model.model_dump_json(): variant.model for variant in self.variants}.values())

    @property
    def chunk(self) -> int:
        """Largest chunk in bytes: ``wire.chunk``, or less if a link loses packets.

        A chunk must fit one packet of such a link, because a chunk of many packets would rarely arrive.
        """
        lossy = [line.link.to_link(1.0).payload for line in self.fleet if line.link is not None and line.link.loss]
        return min([int(self.wire.chunk), *(size for size in lossy if size is not None)])

    def evaluates_after(self, round: int) -> bool:
        """Whether a round's model is to be evaluated: every ``evaluate_every`` rounds, and after the last."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def variant(self, client: int) -> Variant:
        """Return a client's model, training and privacy."""
        if (found := self._place(client)) is None:
            return self.default_variant
        line, number = found
        return self._variant_of(line, number % max(1, len(line.variants)))

    def line_of(self, client: int) -> FleetLine | None:
        """Return a client's line of the fleet; None for a client that no line has."""
        found = self._place(client)
        return found[0] if found else None

    def _place(self, client: int) -> tuple[FleetLine, int] | None:
        """Return a client's line and its number there."""
        first = 0
        for line in self.fleet:
            if client < first + line.clients:
                return line, client - first
            first += line.clients
        return None

    def private_clients(self) -> Iterator[tuple[int, Privacy]]:
        """Yield each client that trains with local differential privacy, with its privacy, in client order."""
        first = 0
        for line in self.fleet:
            sections = [variant.privacy for variant in self._variants_of(line)]
            for client in range(line.clients if any(sections) else 0):
                section = sections[client % len(sections)]
                if section is not None:
                    yield first + client, section
            first += line.clients

    @property
    def variants(self) -> list[Variant]:
        """The models, trainings and privacies that clients have, in the order of the clients; some may be equal."""
        return [variant for line in self.fleet for variant in self._variants_of(line)]

    def trainings(self, *, private: bool = False) -> Iterator[tuple[str, Training]]:
        """Yield each training that clients have, with its key; ``private``: those with local privacy only."""
        for index, line in enumerate(self.fleet):
            for number, variant in enumerate(self._variants_of(line)):
                key = f"fleet.{index}.variants.{number}.training" if line.variants else "training"
                if variant.privacy is not None or not private:
                    yield key, variant.training

    def _variants_of(self, line: FleetLine) -> list[Variant]:
        return [self._variant_of(line, number) for number in range(max(1, len(line.variants)))]

    def _variant_of(self, line: FleetLine, number: int) -> Variant:
        one = line.variants[number] if line.variants else self.default_variant
        privacy = (one.privacy if line.variants else None) or line.privacy or self._local_privacy
        return one if one.privacy == privacy else one.model_copy(update={"privacy": privacy})

    @property
    def is_private(self) -> bool:
        """Whether any client trains with local differential privacy."""
        return any(variant.privacy is not None for variant in self.variants)


@dataclass(frozen=True)
class AgentSpec:
    """One agent to start.

    Args:
        name: the agent's name.
        kind: its board's kind.
        clients: the clients that it hosts.
        line: its line of the fleet.
        link: the link to imitate; None: none.
    """

    name: str
    kind: str
    clients: tuple[int, ...]
    line: FleetLine
    link: Link | None = None

    @property
    def options(self) -> dict[str, str]:
        """Options of the command that starts the agent, by name."""
        line = self.line
        link = self.link.encode() if self.link else None
        values = {
            "link": link,
            "memory": line.memory,
            "budget": line.lasting_budget,
            "workers": line.workers,
            "profile": line.profile,
        }
        return {name: str(int(v)) if isinstance(v, int) else v for name, v in values.items() if v is not None}

    @property
    def flags(self) -> list[str]:
        """Options of that command without a value, by name."""
        return ["relay"] if self.line.relay else []


def agent_specs(fleet: Sequence[FleetLine], speedup: float = 1.0) -> list[AgentSpec]:
    """List the agents of the fleet in its order, with names such as ``strong-0`` and clients numbered from 0.

    Args:
        fleet: the experiment's fleet.
        speedup: seconds that pass on their links for each second at the desk.
    """
    specs: list[AgentSpec] = []
    numbers: Counter[str] = Counter()
    first = 0
    for line in fleet:
        for index in range(line.agents):
            share = line.clients // line.agents + (index < line.clients % line.agents)
            name = f"{line.kind}-{numbers[line.kind]}"
            clients = tuple(range(first, first + share))
            link = line.link.to_link(speedup) if line.link else None
            specs.append(AgentSpec(name, line.kind, clients, line, link))
            numbers[line.kind] += 1
            first += share
    return specs


def dump_experiment(experiment: Experiment) -> str:
    """Return YAML with every default written out, which loads as an equal experiment."""
    return dump_yaml(experiment.model_dump(mode="json"))


def _read_count(section: Any, key: str, default: int) -> int:
    """Return the section's count, or ``default`` if either is invalid; their own checks report that."""
    count = section.get(key) if isinstance(section, Mapping) else getattr(section, key, None)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 1 else default


def _resolve_ratio(section: Mapping[str, Any], clients: int) -> Mapping[str, Any]:
    """Return the section with ``per_round`` for a valid ``ratio``; the field's own checks report an invalid one."""
    ratio = section.get("ratio")
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 < ratio <= 1:
        return section
    if section.get("per_round") is not None:
        return section
    return {**section, "per_round": clients_of_ratio(ratio, clients), "ratio": None}


def _complete_line(line: Any, raw: Mapping[str, Any]) -> Any:
    """Complete a fleet's line and its variants from the experiment; values of a wrong type have their own checks."""
    if not isinstance(line, Mapping):
        return line
    line = _complete_privacy(line, raw)
    if not isinstance(line.get("variants"), list | tuple):
        return line
    return {**line, "variants": [_complete_variant(variant, raw, line) for variant in line["variants"]]}


def _complete_privacy(own: Mapping[str, Any], usual: Mapping[str, Any]) -> Mapping[str, Any]:
    """Complete the section ``privacy``, where there is one, from that of the section around it."""
    mine, others = own.get("privacy"), usual.get("privacy")
    if not isinstance(mine, Mapping) or not isinstance(others, Mapping):
        return own
    mode = others.get("mode", "local")
    return {**own, "privacy": {**others, **mine}} if mine.get("mode", mode) == mode else own


def _complete_variant(variant: Any, raw: Mapping[str, Any], line: Mapping[str, Any]) -> Any:
    if not isinstance(variant, Mapping):
        return variant
    variant = _complete_privacy(_complete_privacy(variant, line), raw)
    own, usual = variant.get("training", {}), raw.get("training", {})
    if not isinstance(own, Mapping) or not isinstance(usual, Mapping):
        return variant
    if own.get("optimiser", "sgd") != "sgd":
        usual = {key: value for key, value in usual.items() if key != "momentum"}  # which only sgd has
    return {**variant, "model": _complete_model(variant, raw), "training": {**usual, **own}}


def _complete_model(variant: Mapping[str, Any], raw: Mapping[str, Any]) -> Any:
    """Return the variant's model with the initialisation of the experiment's, or the experiment's model."""
    own, usual = variant.get("model", raw.get("model")), raw.get("model")
    if not isinstance(own, Mapping) or not isinstance(usual, Mapping) or "initialisation" not in usual:
        return own
    return {"initialisation": usual["initialisation"], **own}


def _find_privacy_problems(experiment: Experiment) -> Iterator[Problem]:
    central = experiment.central_privacy
    if central is not None and central.delta * experiment.data.clients >= 1:
        why = f"it must be below 1/{experiment.data.clients}, because there are that many clients (data.clients)"
        yield Problem("privacy.delta", central.delta, why)
    for key, own in _own_privacies(experiment):
        if own.mode == "central":
            yield Problem(f"{key}.mode", "central", "it is the whole federation's; set mode: local, or remove it here")
        elif central is not None and not central.combined:
            why = (
                "the coordinator adds noise, too (privacy.mode = central); set privacy.combined: true if you want both"
            )
            yield Problem(f"{key}.mode", "local", why)


def _find_secure_problems(experiment: Experiment) -> Iterator[Problem]:
    part, key = experiment.participation, "secure_aggregation"
    least = max(3, part.per_round // 2 + 1)
    if part.quorum < least:
        why = (
            f"{key} needs {least} or more with {part.per_round} clients in a round (participation.per_round): more "
            "than half of them, and at least 3, because two would learn each other's reply from the mean"
        )
        yield Problem("participation.quorum", part.quorum, why)
    if experiment.wire.up != "fp32":
        yield Problem("wire.up", experiment.wire.up, f"{key} sends whole numbers of 64 bits; remove the key")
    if experiment.central_privacy is not None:
        why = "the coordinator must see each update to clip it; remove secure_aggregation, or set privacy.mode: local"
        yield Problem("privacy.mode", "central", why)


def _find_sum_problems(experiment: Experiment) -> Iterator[Problem]:
    if experiment.exact_sums and experiment.secure_aggregation:
        why = "secure_aggregation makes exact sums of its own, of masked numbers; remove one of the two"
        yield Problem("exact_sums", True, why)
    if experiment.exact_sums and experiment.central_privacy is not None:
        why = "the coordinator must see each update to clip it; remove exact_sums, or set privacy.mode: local"
        yield Problem("privacy.mode", "central", why)
    for index, line in enumerate(experiment.fleet):
        if line.relay and not experiment.exact_sums:
            yield Problem(f"fleet.{index}.relay", True, "only exact sums can be grouped; set exact_sums: true, too")


def _own_privacies(experiment: Experiment) -> Iterator[tuple[str, Privacy]]:
    """Return the section ``privacy`` of each line and variant that has one, with its key."""
    for index, line in enumerate(experiment.fleet):
        if line.privacy is not None:
            yield f"fleet.{index}.privacy", line.privacy
        for number, variant in enumerate(line.variants):
            if variant.privacy is not None:
                yield f"fleet.{index}.variants.{number}.privacy", variant.privacy


def _find_contradictions(experiment: Experiment) -> Iterator[Problem]:
    yield from _find_privacy_problems(experiment)
    if experiment.secure_aggregation:
        yield from _find_secure_problems(experiment)
    yield from _find_sum_problems(experiment)
    clients, part = experiment.data.clients, experiment.participation
    if part.per_round > clients:
        yield Problem("participation.per_round", part.per_round, f"there are {clients} clients (data.clients)")
    if part.quorum > part.per_round:
        yield Problem("participation.quorum", part.quorum, f"only {part.per_round} take part (participation.per_round)")
    shares = experiment.data.partition.shares
    if shares is not None and shares < clients:
        why = f"there are {clients} clients (data.clients); each needs a share"
        yield Problem("data.partition.shares", shares, why)
    hosted = sum(line.clients for line in experiment.fleet)
    if hosted != clients:
        why = f"the clients of its lines add up to {hosted}, but data.clients is {clients}; make them equal"
        yield Problem("fleet", None, why)
    for index, line in enumerate(experiment.fleet):
        if line.agents > line.clients:
            why = f"the line has only {line.clients} clients; each agent needs at least one"
            yield Problem(f"fleet.{index}.agents", line.agents, why)
        if len(line.variants) > line.clients:
            why = (
                f"the line has {len(line.variants)} variants for {line.clients} clients; remove those without a client"
            )
            yield Problem(f"fleet.{index}.variants", None, why)
