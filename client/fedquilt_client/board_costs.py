"""Books what the boards behind a site cost the site's relay, by the rule that the coordinator has for agents."""

from __future__ import annotations

from fedquilt_client.records import StoredReply
from fedquilt_client.site_boards import SiteBoards
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.flood_control.admission import Admission
from fedquilt_common.flood_control.flood_guard import chunk_units, reply_units
from fedquilt_common.flood_control.limits import REFUSED_KEPT
from fedquilt_common.flood_control.reply_costs import ReplyCosts
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Address


class BoardCosts:
    """What the replies to the open exchange cost the boards.

    A reply that the relay has taken costs nothing while it waits. If it does not count after all, it is charged then.

    Args:
        boards: those behind the site.
        admission: charges them.
        experiment: of the run.
    """

    def __init__(self, boards: SiteBoards, admission: Admission, experiment: Experiment) -> None:
        self._boards = boards
        self._admission = admission
        self._chunk = experiment.chunk
        admission.guard.fit(experiment.data.clients, experiment.chunk)
        self._costs = ReplyCosts(admission, experiment.chunk)
        self._refused: set[str] = set()

    def open(self, message: RoundMessage) -> None:
        """Begin an exchange, whose replies are about as large as what the clients receive."""
        named = [(one, task) for one in (*message.earlier, message) for task in one.tasks]
        sizes = (sum(one.patches[i].size for i in task.patches) for one, task in named)
        self._costs.open(reply_units(max(sizes, default=0), self._chunk))
        self._refused.clear()
        for board in self._boards.names:
            self.make_room(board)

    def make_room(self, board: str) -> None:
        """Let the bucket of a board hold one refusal of each client that it hosts."""
        self._costs.make_room(board, self._boards.count_clients(board))

    def spend(self, address: Address, size: int) -> None:
        """Note a chunk of a reply, which was charged when it arrived."""
        if self._own_client(address) is not None:
            self._costs.spend(address.agent, address.client, size)

    def refund(self, address: Address) -> None:
        """Refund the messages of a reply that the relay has taken."""
        self._costs.refund(address.agent, address.client)

    def refuse(self, address: Address, digest: str) -> None:
        """Charge a transfer that the relay refuses, once: a board offers it again and again."""
        if digest not in self._refused:
            if len(self._refused) < REFUSED_KEPT:
                self._refused.add(digest)
            self._costs.refuse(address.agent, self._own_client(address))

    def refuse_taken(self, board: str, reply: StoredReply) -> None:
        """Charge a reply that the relay has taken, and that does not count."""
        if not self._costs.refuse(board, reply.client):
            self._admission.charge(board, chunk_units(reply.size))

    def _own_client(self, address: Address) -> int | None:
        return address.client if self._boards.host_of(address.client) == address.agent else None
