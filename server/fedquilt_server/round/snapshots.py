"""The part of the machine that a checkpoint stores besides the algorithm's state, as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedquilt_common.types import ClientId, ExchangeId, Profile
from fedquilt_common.wire.number_ranges import pack_numbers, unpack_numbers
from fedquilt_server.round.exchange import AcceptedReplies, ReplyId
from fedquilt_server.round.policy import KnownAgent


@dataclass(frozen=True)
class Standing:
    """Where the clients stand between two exchanges.

    Attributes:
        counted: round and exchange of the task that each client's last counted reply answers.
        working: the clients that go on with a task of an earlier exchange, with its round and exchange.
    """

    counted: Mapping[ClientId, ExchangeId] = field(default_factory=dict)
    working: Mapping[ClientId, ExchangeId] = field(default_factory=dict)

    def after(self, answers: Mapping[ClientId, ExchangeId], going_on: Mapping[ClientId, ExchangeId]) -> Standing:
        """Return the standing after an exchange.

        Args:
            answers: round and exchange of the task that each reply answers.
            going_on: the clients that go on with their tasks.
        """
        return Standing({**self.counted, **answers}, going_on)

    def counted_of(self, clients: Iterable[ClientId]) -> dict[ClientId, ExchangeId]:
        """Return the last counted reply of these clients, without those that have none."""
        return {client: self.counted[client] for client in clients if client in self.counted}

    def working_except(self, clients: Container[ClientId]) -> dict[ClientId, ExchangeId]:
        """Return the clients that go on with their tasks, without these."""
        return {client: asked for client, asked in self.working.items() if client not in clients}


@dataclass(frozen=True)
class MachineSnapshot:
    """The machine between two rounds.

    Attributes:
        agents: the connected agents, in the order in which they joined.
        host_of: the agent that hosts each client.
        silent: clients that are not asked until they show a sign of life.
        declined: clients that do no task any more.
        accepted: replies that count, of this round, each with the exchange in which it counts.
        standing: each client's last reply that counts, and the tasks that go on.
        paused: whether a person holds the next round back; ``Continued`` lets it open.
    """

    agents: Mapping[str, KnownAgent] = field(default_factory=dict)
    host_of: Mapping[ClientId, str] = field(default_factory=dict)
    silent: frozenset[ClientId] = frozenset()
    declined: frozenset[ClientId] = frozenset()
    accepted: AcceptedReplies = field(default_factory=AcceptedReplies)
    standing: Standing = field(default_factory=Standing)
    paused: bool = False

    def encode(self) -> str:
        """Return the snapshot as JSON."""
        return json.dumps({
            "agents": {name: _encode_agent(agent) for name, agent in self.agents.items()},
            "hosts": _pack_hosts(self.host_of),
            "silent": pack_numbers(sorted(self.silent)),
            "declined": pack_numbers(sorted(self.declined)),
            "accepted": sorted((*reply, *counted) for reply, counted in self.accepted.items()),
            "counted": _pack_exchanges(self.standing.counted),
            "working": _pack_exchanges(self.standing.working),
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
            AcceptedReplies(_unpack_reply(packed) for packed in saved["accepted"]),
            Standing(_unpack_exchanges(saved.get("counted", [])), _unpack_exchanges(saved.get("working", []))),
            bool(saved.get("paused")),
        )


def _pack_exchanges(exchanges: Mapping[ClientId, ExchangeId]) -> list[tuple[int, int, int]]:
    return [(client, *exchange) for client, exchange in exchanges.items()]


def _unpack_exchanges(packed: Iterable[tuple[int, int, int]]) -> dict[ClientId, ExchangeId]:
    return {client: (round, exchange) for client, round, exchange in packed}


def _unpack_reply(packed: Sequence[int]) -> tuple[ReplyId, ExchangeId]:
    """Return a reply and the exchange in which it counts; earlier versions saved only the reply, which counts there."""
    client, round, exchange, *counted = packed
    first, second = counted or (round, exchange)
    return (client, round, exchange), (first, second)


def _encode_agent(agent: KnownAgent) -> dict[str, Any]:
    # not asdict, which copies the clients of every agent at each checkpoint
    return vars(agent) | {"clients": pack_numbers(agent.clients), "profile": vars(agent.profile)}


def _pack_hosts(host_of: Mapping[ClientId, str]) -> list[tuple[int | list[int], str]]:
    """Return clients, or ranges of them as [first, last], each with the agent that hosts it; the order stays."""
    runs = itertools.groupby(host_of.items(), key=lambda item: item[1])
    return [(packed, agent) for agent, run in runs for packed in pack_numbers([client for client, _ in run])]
