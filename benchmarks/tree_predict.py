"""Predicts a round of many clients from the costs of its parts, with and without a tree of relays.

In a tree, each board sends its reply to a relay, which adds up to ``fan_out`` of them and sends one sum to the relay
above, and so on up to the coordinator. A relay shares its machine with the broker of the place, to which the boards
or the relays below connect. Levels work one after another; within a level, all machines at the same time, and on each
machine the relay, the broker and the line. So a level takes as long as the slowest of these. Training is not part of
it. Everything here is pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tree_model import PARTS, SITE_RELAY, Cost, Fit, Line, Load, load_of

from fedquilt_common.flood_control.limits import MOST_AGENTS
from fedquilt_common.wire.message_base import MAX_CLIENTS
from fedquilt_common.wire.messages import MOST_MEMBERS
from fedquilt_common.wire.parsing import MAX_MESSAGE

PACKET_BYTES: Final = 2_000_000
"""Largest packet that Mosquitto 2.1 accepts unless it is configured otherwise."""


@dataclass(frozen=True)
class Federation:
    """What is predicted: clients, each on a board of its own, that are all asked in each round.

    Args:
        clients: number of clients.
        megabytes: size of the model.
        fan_out: children of a relay and of the coordinator; None: all boards are the coordinator's children.
        line: megabytes a second of each machine's line, in each direction; 125 are 1 Gbit/s.
        manifest: bytes of the manifest for each client.
        member: bytes of a sum for each member, besides its numbers.
        whole_manifest: whether each board receives the tasks of all clients, as now, instead of its own.
    """

    clients: int
    megabytes: float
    fan_out: int | None = None
    line: float = 125.0
    manifest: float = 21.0
    member: float = 20.0
    whole_manifest: bool = True


@dataclass(frozen=True)
class Level:
    """Machines of one kind, each with a broker and a relay or the coordinator.

    Attributes:
        machines: how many there are.
        children: boards or relays that are connected to each.
        members: clients whose replies arrive at each, by themselves or in sums.
        down: megabytes that each child receives.
        up: megabytes that each child sends.
    """

    name: str
    machines: int
    children: int
    members: int
    down: float
    up: float


@dataclass(frozen=True)
class Use:
    """What a level takes in a round, in seconds of each of its machines.

    Attributes:
        process: processor seconds of the relay or the coordinator.
        broker: processor seconds of the broker.
        line: seconds in which the line is busy.
    """

    level: Level
    process: float
    broker: float
    line: float

    @property
    def seconds(self) -> float:
        """Seconds of the slowest part."""
        return max(self.process, self.broker, self.line)

    @property
    def bottleneck(self) -> str:
        """The slowest part."""
        own = "coordinator" if self.level.name == "coordinator" else "relay"
        return max((self.process, own), (self.broker, "broker"), (self.line, "line"))[1]


@dataclass(frozen=True)
class Prediction:
    """A round of a federation."""

    levels: Sequence[Use]

    @property
    def seconds(self) -> float:
        """Seconds of the round without training."""
        return math.fsum(use.seconds for use in self.levels)

    @property
    def bottleneck(self) -> Use:
        """The slowest level."""
        return max(self.levels, key=lambda use: use.seconds)

    @property
    def machines(self) -> int:
        """Machines besides the boards."""
        return sum(use.level.machines for use in self.levels)

    @property
    def processor_seconds(self) -> float:
        """Processor seconds of all machines besides the boards."""
        return math.fsum(use.level.machines * (use.process + use.broker) for use in self.levels)


def levels_of(federation: Federation) -> list[Level]:
    """Return the levels of a federation from the boards' side to the coordinator."""
    fan_out, clients = federation.fan_out, federation.clients
    known = clients * federation.manifest / 1e6
    found: list[Level] = []
    below, members, up = clients, 1, federation.megabytes
    while fan_out is not None and below > fan_out:
        machines = math.ceil(below / fan_out)
        members = min(clients, members * fan_out)
        share = known if federation.whole_manifest else known * members / clients / (fan_out if not found else 1)
        found.append(Level(f"relays {len(found) + 1}", machines, fan_out, members, federation.megabytes + share, up))
        below, up = machines, federation.megabytes + members * federation.member / 1e6
    share = known if federation.whole_manifest else known / below
    return [*found, Level("coordinator", 1, below, clients, federation.megabytes + share, up)]


def predict(federation: Federation, costs: Mapping[str, Cost]) -> Prediction:
    """Predict a round.

    Args:
        federation: clients, model and tree.
        costs: of the parts that ``tree_model.fit_all`` names.
    """
    return Prediction([use_of(level, federation, costs) for level in levels_of(federation)])


def use_of(level: Level, federation: Federation, costs: Mapping[str, Cost]) -> Use:
    """Return what a level takes in a round."""
    down, up = level.children * level.down, level.children * level.up
    through_broker = level.down + down + 2 * up
    broker = costs["broker"].seconds(Load(1 + 3 * level.children, through_broker))
    return Use(level, process_seconds(level, federation.megabytes, costs), broker, max(down, up) / federation.line)


def process_seconds(level: Level, megabytes: float, costs: Mapping[str, Cost]) -> float:
    """Return the processor seconds of a relay or the coordinator.

    A relay that receives single replies is that of a site. A relay of sums uses what a coordinator of sums uses, and
    writes another sum.
    """
    k, members, received = level.children, level.members, level.children * level.up
    single, summed, relay = costs["coordinator"], costs["coordinator of sums"], costs["relay"]
    if members == k and level.name == "coordinator":
        return single.seconds(Load(k, level.down + received, k))
    if members == k:
        return costs[SITE_RELAY].seconds(Load(k, k * megabytes, k, megabytes))
    reading = summed.seconds(Load(members, level.down, k, k * megabytes)) + single.megabyte * received
    return reading + (0.0 if level.name == "coordinator" else relay.sum_megabyte * megabytes)


def costs_of_trained(fits: Mapping[str, Fit], sums: Sequence[Line]) -> dict[str, Cost]:
    """Return the costs with sums of trained models, which are larger than those of the measured rounds.

    Args:
        fits: fitted to rounds in which all updates are the same constant.
        sums: what ``sum_costs.measure_sums`` returned.
    """
    constant, noise = (next(one for one in sums if one["updates"] == kind) for kind in ("constant", "noise"))
    costs = {part: fit.cost for part, fit in fits.items()}
    for part, key in (
        ("relay", "write_seconds"),
        (SITE_RELAY, "write_seconds"),
        ("training process with joint jobs", "write_seconds"),
        ("relay with joint jobs", "read_seconds"),
        ("coordinator of sums", "read_seconds"),
    ):
        more = float(noise[key]) - float(constant[key])
        costs[part] = replace(costs[part], sum_megabyte=costs[part].sum_megabyte + more)
    return costs


def exceeded_limits(federation: Federation) -> Iterator[str]:
    """Yield the limits of the program that a federation exceeds."""
    last = levels_of(federation)[-1]
    manifest = federation.clients * federation.manifest
    below = math.ceil(federation.clients / last.children)
    yield from (
        text
        for text, value, limit in (
            ("clients", federation.clients, MAX_CLIENTS),
            ("boards", last.children, MOST_AGENTS),
            ("members of a sum", below, MOST_MEMBERS),
            ("manifest", manifest if federation.whole_manifest else manifest / last.children, MAX_MESSAGE),
        )
        if value > limit
    )


def predict_case(line: Line, costs: Mapping[str, Cost]) -> dict[str, float]:
    """Return the processor seconds of each role in a measured case, as the model predicts them."""
    count = {"broker": 1, "coordinator": 1, "agent": line["agents"], "worker": line["agents"]}
    return {
        role: count[role] * costs[part].seconds(load_of(part, line))
        for part, (role, has_part) in PARTS.items() if has_part(line)
    }  # fmt: skip


def total(seconds: Mapping[str, Any]) -> float:
    """Return the sum over all roles."""
    return math.fsum(float(value) for value in seconds.values())
