"""Fetch the status of a run from its page, as a program that supervises the run does."""

from __future__ import annotations

from typing import Final

import httpx
from pydantic import ValidationError

from fedquilt_common.errors import RunFailedError
from fedquilt_common.rejections import first_problem
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
        """Return the newest snapshot, with all rounds; None while no coordinator answers.

        Raises:
            RunFailedError: the page's answer is no snapshot.
        """
        try:
            since = self._known[-1].round if self._known else 0
            response = self._page.get("api/status", params={"since": since})
            response.raise_for_status()
        except httpx.HTTPError:
            return None  # the coordinator is starting, or was just killed
        fresh = _parse(response)
        self._known += fresh.history
        return fresh.model_copy(update={"history": list(self._known)})


def _parse(response: httpx.Response) -> Snapshot:
    try:
        return Snapshot.model_validate_json(response.content)
    except ValidationError as error:
        raise RunFailedError(
            f"the run's status page at {response.url} answers with no valid state "
            f"({first_problem(error, 'the answer')}), so the run cannot be followed; if an algorithm of "
            "your own yields or reports this value, correct it, and run the same command again to resume"
        ) from None
