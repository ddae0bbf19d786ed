"""The part of the machine that a checkpoint stores beside the algorithm's state, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedquilt_common.types import ClientId, ExchangeId, Profile
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
            # not asdict, which copies the clients of every agent at each checkpoint
            "agents": {name: vars(agent) | {"profile": vars(agent.profile)} for name, agent in self.agents.items()},
            "hosts": list(self.host_of.items()),
            "silent": sorted(self.silent),
            "declined": sorted(self.declined),
            "accepted": sorted(self.accepted),
            "counted": [(client, *exchange) for client, exchange in self.counted.items()],
            "paused": self.paused,
        })  # fmt: skip

    @classmethod
    def decode(cls, text: str) -> MachineSnapshot:
        """Return the snapshot that ``encode`` wrote."""
        saved = json.loads(text)
        agents = {
            name: KnownAgent(a["boot"], tuple(a["clients"]), a["workers"], Profile(**a["profile"]))
            for name, a in saved["agents"].items()
        }
        return cls(
            agents,
            dict(saved["hosts"]),
            frozenset(saved["silent"]),
            frozenset(saved.get("declined", ())),
            frozenset((client, number, exchange) for client, number, exchange in saved["accepted"]),
            {client: (number, exchange) for client, number, exchange in saved.get("counted", [])},
            bool(saved.get("paused")),
        )
