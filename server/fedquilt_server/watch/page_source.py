"""Follow a run through its status page's API."""

from __future__ import annotations

from typing import Final

import httpx
from pydantic import ValidationError

from fedquilt_common.errors import PageUnreachableError
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.watch.polling import PolledSource
from fedquilt_server.watch.state import WatchState

ANSWER_SECONDS: Final = 5.0
NOT_FOUND: Final = "it is not the status page of a fedquilt coordinator"


class PageReader:
    """Fetches snapshots of the run behind a page. A request asks only for rounds that are new.

    Args:
        url: address of the page.
        token: token of the page; empty without one.
    """

    def __init__(self, url: str, token: str = "") -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.url = url if "://" in url else f"http://{url}"
        self._page = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, headers=headers)
        self._run = ""
        self._history: list[RoundResult] = []

    def close(self) -> None:
        """Close the connection."""
        self._page.close()

    def fetch(self) -> Snapshot:
        """Return the newest snapshot, with all rounds of its run.

        Raises:
            PageUnreachableError: nothing answers, or what answers is not a run's page.
        """
        fresh = self._get(self._history[-1].round if self._history else 0)
        if fresh.run != self._run:  # another run has begun at this address
            fresh = self._get(0) if self._history else fresh
            self._run, self._history = fresh.run, []
        self._history = [*self._history, *fresh.history]
        return fresh.model_copy(update={"history": self._history})

    def _get(self, since: int) -> Snapshot:
        try:
            response = self._page.get("api/status", params={"since": since})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PageUnreachableError(f"no status page answers at {self.url}: {error}") from None
        if response.status_code in (401, 403):
            advice = "give its token with --token or FEDQUILT_PAGE_TOKEN"
            raise PageUnreachableError(f"the page at {self.url} refuses to show the run: {advice}")
        if response.status_code != httpx.codes.OK:
            raise PageUnreachableError(f"{self.url} answers with status {response.status_code}: {NOT_FOUND}")
        try:
            return Snapshot.model_validate_json(response.content)
        except ValidationError:
            raise PageUnreachableError(f"{self.url} does not answer with a run's state: {NOT_FOUND}") from None


def page_source(reader: PageReader, *, once: bool) -> PolledSource:
    """Return a source of the states that a page reports.

    Args:
        reader: fetches the snapshots.
        once: raise the first failure; otherwise it is shown, and the page is asked again.
    """

    def fetch(last: WatchState | None) -> WatchState:
        try:
            return WatchState(reader.fetch(), reader.url)
        except PageUnreachableError as error:
            if once:
                raise
            return WatchState(last.snapshot if last else Snapshot(), reader.url, str(error))

    return PolledSource(fetch)
