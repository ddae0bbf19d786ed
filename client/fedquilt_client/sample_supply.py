"""Where the samples of this board's clients come from in one run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedquilt_client.data_downloads import DataDownloads
from fedquilt_client.settings import AgentSettings
from fedquilt_client.worker_pool import Post
from fedquilt_common.errors import FedquiltError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.training_jobs import JobData
from fedquilt_common.wire.data_messages import DataFile, DataRequest
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SampleSupply:
    """The samples of one run on this board.

    Attributes:
        folder: where delivered samples stay.
        own: file or ``package:factory`` with the samples that only this board has, by client; None: it needs none.
        downloads: the samples that the coordinator delivers; None: the board has the data set.
    """

    folder: Path
    own: Mapping[int, str] | None = None
    downloads: DataDownloads | None = None

    @classmethod
    def for_run(
        cls,
        message: RunMessage,
        folder: Path,
        settings: AgentSettings,
        transport: Transport,
        topics: Topics,
        post: Post,
        then: Callable[[], None],
    ) -> SampleSupply:
        """Make the supply of a run, and request the samples that are missing.

        Args:
            message: the run's message.
            folder: where delivered samples stay.
            settings: the board's clients, and their own samples.
            transport: the connection to the broker.
            topics: the topics of the federation.
            post: runs a callable in the agent's thread.
            then: called in the agent's thread after each download from an address.

        Raises:
            RunFolderError: the disk is full or broken.
        """
        if message.data is None:
            return cls(folder)

        def send(request: DataRequest) -> None:
            transport.publish(topics.requests(settings.name), request.encode())

        def start_fetch(file: DataFile, path: Path) -> None:
            threading.Thread(target=work, args=(file, path), daemon=True, name="samples").start()

        def work(file: DataFile, path: Path) -> None:
            problem = _fetch_file(file, path)
            post(lambda: finish(file, problem))

        def finish(file: DataFile, problem: str) -> None:
            with report_disk_errors(folder):
                downloads.finish_fetch(file, problem)
            then()

        downloads = DataDownloads(folder, message.run, message.data, settings.clients, send, start_fetch)
        with report_disk_errors(folder):
            downloads.start()
        return cls(folder, settings.own_data if not message.data.shards else None, downloads)

    def has(self, client: int) -> bool:
        """Return whether a client can be trained: its samples are on this board."""
        return (self.own is None or client in self.own) and (self.downloads is None or self.downloads.has(client))

    def problem(self, client: int) -> str:
        """Return why a client's samples cannot get here; empty if they are here or on their way."""
        if self.own is not None and client not in self.own:
            return f"it has no samples: start the agent with --data {client}=FILE"
        return "" if self.downloads is None else self.downloads.problem(client)

    def job_data(self, client: int) -> JobData | None:
        """Return the files of a client that ``has`` its samples; None: the board has the data set."""
        if self.downloads is None:
            return None
        own = self.own[client] if self.own is not None else None
        return self.downloads.job_data(client).model_copy(update={"own": own})

    def take(self, header: bytes, payload: bytes) -> bool:
        """Store a chunk; returns whether tasks may go on: samples are complete, or cannot be obtained.

        Raises:
            PayloadError: the message is not a chunk of samples that this board requested.
            RunFolderError: the disk is full or broken.
        """
        if self.downloads is None:
            return False
        with report_disk_errors(self.folder):
            return self.downloads.take(header, payload)

    def fetch_again(self, path: Path) -> bool:
        """Download damaged samples again; returns whether ``path`` holds samples of this run. Raises as ``take``."""
        with report_disk_errors(self.folder):
            return self.downloads is not None and self.downloads.fetch_again(path)

    def retry(self) -> None:
        """Try again to get samples that could not be obtained. Raises as ``take``."""
        if self.downloads is not None:
            with report_disk_errors(self.folder):
                self.downloads.retry()

    def repair(self) -> None:
        """Request chunks again that did not arrive for a while."""
        if self.downloads is not None:
            self.downloads.repair()

    def close(self) -> None:
        """Stop a transfer; what has arrived stays on disk."""
        if self.downloads is not None:
            self.downloads.close()


def _fetch_file(file: DataFile, path: Path) -> str:
    """Download a file from its address; returns why it is not there, or nothing."""
    from fedquilt_common.downloads.fetch import fetch  # an idle agent does not need it

    try:
        fetch(str(file.url), path, file.digest, file.size)
    except FedquiltError as error:
        return f"its samples cannot be downloaded; the board tries again with the next exchange. {error}"
    except Exception as error:  # a thread that ends silently would leave the client waiting for ever
        log.exception("the download of %s failed", file.url)
        return f"its samples cannot be downloaded: {error!r}. See the log of the board's agent, and please report it"
    return ""
