"""Publishes the samples of a run to the agents that request them; holds nothing but the counts of what it has sent."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from fedquilt_common.errors import PayloadError
from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.wire.chunks import CHUNK, Blob, publish_chunks
from fedquilt_common.wire.data_messages import DataRequest
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport
from fedquilt_server.lab.delivery import Delivery
from fedquilt_server.round.machine import Machine

log = logging.getLogger(__name__)

MOST_TIMES: Final = 4
"""How often an agent may receive the chunks of one file: once, and again after losses."""
_SPARE: Final = 64


class DataService:
    """Answers the requests for samples.

    Args:
        run: identifier of the run.
        delivery: the run's files; None: it delivers none.
        transport: publishes the chunks.
        topics: the topics of the federation.
        chunk: largest chunk in bytes.
        machine: names the agent that hosts each client.
    """

    def __init__(
        self,
        run: str,
        delivery: Delivery | None,
        transport: Transport,
        topics: Topics,
        chunk: int,
        machine: Machine,
    ) -> None:
        self._run = run
        self._delivery = delivery
        self._transport = transport
        self._topics = topics
        self._chunk = chunk
        self._machine = machine
        self._sent: Counter[tuple[str, str]] = Counter()

    def take(self, agent: str, request: DataRequest) -> bool:
        """Publish the chunks that an agent requests; a request of another run is ignored.

        Returns:
            Whether any were published.

        Raises:
            PayloadError: the file is not for this agent, or it has requested it too often.
            RunFolderError: the file cannot be read.
        """
        if self._delivery is None or request.run != self._run:
            return False
        host_of = self._machine.host_of
        if agent not in host_of.values():
            return False  # its presence has not arrived, or its clients have another host; it asks again
        path = self._delivery.files.get(request.digest)
        clients = self._delivery.clients.get(request.digest)
        if path is None or not (clients is None or any(host_of.get(client) == agent for client in clients)):
            raise PayloadError(f"agent {agent} requested samples {request.digest[:12]}... of other clients")
        with report_run_errors(path.parent):
            return self._publish(agent, Blob(path, request.digest, path.stat().st_size), request)

    def _publish(self, agent: str, blob: Blob, request: DataRequest) -> bool:
        chunk = min(CHUNK, self._chunk, self._transport.max_payload)  # the broker holds 16 of them for each agent
        chosen, total = blob.headers(chunk, request.first, request.count), blob.count_chunks(chunk)
        self._count(agent, request.digest, len(chosen), total)
        publish_chunks(self._transport, blob, chosen, lambda _: self._topics.data(agent))
        return bool(chosen)

    def _count(self, agent: str, digest: str, chunks: int, total: int) -> None:
        """Count what an agent receives, so that a broken one cannot use up the link."""
        self._sent[agent, digest] += chunks
        if self._sent[agent, digest] > MOST_TIMES * total + _SPARE:
            raise PayloadError(
                f"agent {agent} has received its samples {MOST_TIMES} times and requests them again: check its "
                "disk, and start the coordinator again to allow more"
            )
