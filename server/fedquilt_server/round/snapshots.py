"""The part of the machine that a checkpoint stores beside the algorithm's state, as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedquilt_common.types import ClientId, ExchangeId, Profile
from fedquilt_common.wire.number_ranges import pack_numbers, unpack_numbers
from fedquilt_server.round.policy import KnownAgent

ReplyId = tuple[ClientId, int, int]
"""Client, round and exchange."""


@dataclass(frozen=True)
class MachineSnapshot:
    """The machine between two rounds.

    Attributes:
        agents: the connected agents, in the order in which they joined.
        host_of: the agent that hosts each client.
        silent: clients that are not asked until they show a sign of life.
        declined: clients that do no task any more.
        accepted: replies that count, of this round.
        counted: each client's last reply that counts.
        paused: whether no further round opens.
    """

    agents: Mapping[str, KnownAgent] = field(default_factory=dict)
    host_of: Mapping[ClientId, str] = field(default_factory=dict)
    silent: frozenset[ClientId] = frozenset()
    declined: frozenset[ClientId] = frozenset()
    accepted: frozenset[ReplyId] = frozenset()
    counted: Mapping[ClientId, ExchangeId] = field(default_factory=dict)
    paused: bool = False

    def encode(self) -> str:
        """Return the snapshot as JSON."""
        return json.dumps({
            "agents": {name: _encode_agent(agent) for name, agent in self.agents.items()},
            "hosts": _pack_hosts(self.host_of),
            "silent": pack_numbers(sorted(self.silent)),
            "declined": pack_numbers(sorted(self.declined)),
            "accepted": sorted(self.accepted),
            "counted": [(client, *exchange) for client, exchange in self.counted.items()],
            "paused": self.paused,
        })  # fmt: skip

    @classmethod
    def decode(cls, text: str) -> MachineSnapshot:
        """Return the snapshot that ``encode`` wrote."""
        saved = json.loads(text)
        agents = {
            name: KnownAgent(a["boot"], tuple(unpack_numbers(a["clients"])), a["workers"], Profile(**a["profile"]))
            for name, a in saved["agents"].items()
        }
        return cls(
            agents,
            {client: agent for packed, agent in saved["hosts"] for client in unpack_numbers([packed])},
            frozenset(unpack_numbers(saved["silent"])),
            frozenset(unpack_numbers(saved.get("declined", ()))),
            frozenset((client, number, exchange) for client, number, exchange in saved["accepted"]),
            {client: (number, exchange) for client, number, exchange in saved.get("counted", [])},
            bool(saved.get("paused")),
        )


def _encode_agent(agent: KnownAgent) -> dict[str, Any]:
    # not asdict, which copies the clients of every agent at each checkpoint
    return vars(agent) | {"clients": pack_numbers(agent.clients), "profile": vars(agent.profile)}


def _pack_hosts(host_of: Mapping[ClientId, str]) -> list[tuple[int | list[int], str]]:
    """Return clients, or ranges of them as [first, last], each with the agent that hosts it; the order stays."""
    runs = itertools.groupby(host_of.items(), key=lambda item: item[1])
    return [(packed, agent) for agent, run in runs for packed in pack_numbers([client for client, _ in run])]
