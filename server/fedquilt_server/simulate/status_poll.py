"""Fetch the status of a run from its page, as a program that supervises the run does."""

from __future__ import annotations

from typing import Final

import httpx

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot

ANSWER_SECONDS: Final = 2.0


class StatusPoll:
    """Fetches snapshots of one run. A request asks only for rounds that are new, so polling a long run stays cheap.

    Args:
        page_url: address of the run's status page.
    """

    def __init__(self, page_url: str) -> None:
        self._page = httpx.Client(base_url=page_url, timeout=ANSWER_SECONDS)
        self._known: list[RoundResult] = []

    def __enter__(self) -> StatusPoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._page.close()

    def fetch(self) -> Snapshot | None:
        """Return the newest snapshot, with all rounds; None while no coordinator answers."""
        try:
            since = self._known[-1].round if self._known else 0
            response = self._page.get("api/status", params={"since": since})
            response.raise_for_status()
        except httpx.HTTPError:
            return None  # the coordinator is starting, or was just killed
        fresh = Snapshot.model_validate_json(response.content)
        self._known += fresh.history
        return fresh.model_copy(update={"history": list(self._known)})
