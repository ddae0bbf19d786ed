"""Keeps what was published for tasks that go on after their exchange has closed (``Ask``).

A task that goes on keeps its manifest, its patches and its expected reply. They are stored in the journal before a
reply to the exchange can count, so a coordinator that restarts takes late replies, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_common.wire.parsing import parse
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_server.coordinator.expected_replies import ExpectedReply
from fedquilt_server.round.events import Send
from fedquilt_server.runs.journal import Journal

_META: Final = "earlier"


@dataclass(frozen=True)
class PublishedExchange:
    """What was published for an exchange, and the replies that it expects."""

    message: RoundMessage
    expected: Mapping[ClientId, ExpectedReply]

    def reduce(self, clients: Collection[ClientId]) -> PublishedExchange:
        """Return what these clients still need."""
        expected = {client: reply for client, reply in self.expected.items() if client in clients}
        return PublishedExchange(self.message.reduce(clients), expected)

    def encode(self) -> dict[str, Any]:
        """Return the exchange as JSON values; clients with the same layouts share them."""
        layouts = {id(reply.layouts): reply.layouts for reply in self.expected.values()}
        places = {key: place for place, key in enumerate(layouts)}
        return {
            "message": self.message.encode().decode(),
            "layouts": [[dict(layout) for layout in choices] for choices in layouts.values()],
            "expected": {
                client: {**asdict(reply), "layouts": places[id(reply.layouts)]}
                for client, reply in self.expected.items()
            },
        }

    @classmethod
    def decode(cls, saved: Mapping[str, Any]) -> PublishedExchange:
        """Return the exchange that ``encode`` wrote."""
        layouts = [[_decode_layout(layout) for layout in choices] for choices in saved["layouts"]]
        return cls(
            parse(RoundMessage, saved["message"].encode(), "the manifest in the journal"),
            {int(client): _decode_expected(reply, layouts) for client, reply in saved["expected"].items()},
        )


def _decode_layout(saved: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (dtype, tuple(shape)) for name, (dtype, shape) in saved.items()}


def _decode_expected(saved: Mapping[str, Any], layouts: list[Any]) -> ExpectedReply:
    return ExpectedReply(
        exchange=(saved["exchange"][0], saved["exchange"][1]),
        fingerprint=saved["fingerprint"],
        layouts=layouts[saved["layouts"]],
        metrics={name: (least, most) for name, (least, most) in saved["metrics"].items()},
        public=saved["public"],
    )


class EarlierTasks:
    """The exchanges whose tasks may go on, as the journal stores them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        saved = [PublishedExchange.decode(one) for one in json.loads(journal.meta(_META) or "[]")]
        self._exchanges = {one.message.id: one for one in saved}

    @property
    def digests(self) -> set[str]:
        """Digests of the blobs that must stay on disk."""
        return {patch.digest for one in self._exchanges.values() for patch in one.message.patches}

    def add(self, message: RoundMessage, expected: Mapping[ClientId, ExpectedReply]) -> None:
        """Keep an exchange whose tasks may go on."""
        self._exchanges[message.id] = PublishedExchange(message.alone(), expected)
        self._save()

    def has(self, send: Send) -> bool:
        """Whether an exchange is kept, so that its tasks can go on."""
        return (send.round, send.exchange) in self._exchanges

    def select(self, working: Mapping[ClientId, ExchangeId]) -> list[PublishedExchange]:
        """Return what was published for tasks that go on, reduced to their clients, in the order of the exchanges.

        Args:
            working: the clients that go on, each with round and exchange of its task.
        """
        return [self._exchanges[asked].reduce(clients) for asked, clients in sorted(_by_exchange(working).items())]

    def keep(self, working: Mapping[ClientId, ExchangeId], done: int) -> None:
        """Forget the exchanges of finished rounds in which no task goes on.

        Args:
            working: the clients that go on after round ``done``.
            done: rounds that are finished.
        """
        needed = set(working.values())
        kept = {asked: one for asked, one in self._exchanges.items() if asked in needed or asked[0] > done}
        if len(kept) < len(self._exchanges):
            self._exchanges = kept
            self._save()

    def _save(self) -> None:
        self._journal.set_meta(_META, json.dumps([one.encode() for one in self._exchanges.values()]))


def _by_exchange(working: Mapping[ClientId, ExchangeId]) -> dict[ExchangeId, set[ClientId]]:
    groups: dict[ExchangeId, set[ClientId]] = {}
    for client, asked in working.items():
        groups.setdefault(asked, set()).add(client)
    return groups


def find_free_slots(earlier: Iterable[RoundMessage], count: int) -> list[int]:
    """Return the first ``count`` slots that no earlier manifest uses."""
    taken = {patch.slot for message in earlier for patch in message.patches}
    return [slot for slot in range(count + len(taken)) if slot not in taken][:count]
