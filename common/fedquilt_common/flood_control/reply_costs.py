"""Books what replies cost their senders, and refunds the cost of useful messages.

Useful messages are those of a reply that counts, and of the first refused reply of each client in an exchange. An agent
that restarts sends the latter through no fault of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fedquilt_common.flood_control.admission import Admission
from fedquilt_common.flood_control.flood_guard import RECORD_UNITS, REPLIES, chunk_units
from fedquilt_common.types import ClientId

_ClientOfAgent = tuple[str, ClientId]


class ReplyCosts:
    """What the replies to the open exchange cost.

    Args:
        admission: charges the agents.
        chunk: largest chunk of a reply in bytes.
    """

    def __init__(self, admission: Admission, chunk: int) -> None:
        self._admission = admission
        self._guard = admission.guard
        self._refusal_units = RECORD_UNITS + chunk_units(chunk)
        self._reply_units = self._last_units = 0.0
        self._spent: defaultdict[_ClientOfAgent, float] = defaultdict(float)
        self._refused: set[_ClientOfAgent] = set()

    def open(self, reply_units: float) -> None:
        """Begin an exchange, whose largest reply costs ``reply_units``; late replies to the last one still arrive."""
        self._reply_units, self._last_units = max(reply_units, self._last_units), reply_units
        self._guard.expect(self._reply_units)
        self._spent.clear()
        self._refused.clear()

    def make_room(self, sender: str, clients: int) -> None:
        """Let the bucket of an agent hold one refusal of each client for which it sends replies.

        An agent offers all its stored replies again with each manifest.
        """
        self._guard.make_room(sender, clients * self._refusal_units)

    def spend(self, sender: str, client: ClientId, size: int) -> None:
        """Note a chunk of a reply, which was charged when it arrived."""
        self._spent[sender, client] += chunk_units(size)

    def refund(self, sender: str, client: ClientId) -> None:
        """Remove the messages of a reply from its sender's bucket."""
        spent = self._spent.pop((sender, client), 0.0)
        self._guard.refund(sender, min(spent, REPLIES * self._reply_units))

    def refuse(self, agent: str, client: ClientId | None, others: Iterable[str] = ()) -> bool:
        """Charge a refused reply, unless it is the first one of its client in this exchange.

        Args:
            client: whose reply it is; None: no client of the agent.
            others: who else may have sent it.

        Returns:
            Whether it is excused.
        """
        self._admission.charge(agent, RECORD_UNITS)
        if client is None or (agent, client) in self._refused:
            return False
        self._refused.add((agent, client))
        self._guard.refund(agent, RECORD_UNITS)
        for sender in (agent, *others):
            self.refund(sender, client)
        return True
