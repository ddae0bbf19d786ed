"""The page of a run that goes on: its address and its token are in the run folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fedquilt_common.errors import PageUnreachableError
from fedquilt_server.library.page_reader import ANSWER_SECONDS, PageReader
from fedquilt_server.runs.page_address import PageAddress, read_page, read_token
from fedquilt_server.status.snapshot import Snapshot


class LivePage:
    """Asks the page that a run folder names.

    Args:
        folder: the run folder.
        token: token of the page; empty for the one in the folder.
        patience: seconds to wait for an answer.

    Attributes:
        url: address of the page that answered last; empty before.
    """

    def __init__(self, folder: Path, token: str = "", patience: float = ANSWER_SECONDS) -> None:
        self.url = ""
        self._folder, self._token, self._patience = folder, token, patience
        self._reader: PageReader | None = None
        self._address: PageAddress | None = None

    def fetch(self) -> Snapshot | None:
        """Return what the page reports; None if there is no page, it does not answer, or it is that of another run."""
        if (address := read_page(self._folder)) is None:
            return None
        if address != self._address or self._reader is None:
            self.close()
            token = self._token or read_token(self._folder)
            self._address, self._reader = address, PageReader(address.url, token, self._patience)
        with contextlib.suppress(PageUnreachableError):
            snapshot = self._reader.fetch()
            self.url = address.url
            return snapshot if snapshot.run == address.run else None
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
