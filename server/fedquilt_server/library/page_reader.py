"""Read a run through its status page's API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx
from pydantic import ValidationError

from fedquilt_common.errors import PageUnreachableError
from fedquilt_server.history.history import ROUNDS_KEPT
from fedquilt_server.runs.page_address import TOKEN_VARIABLE
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot

ANSWER_SECONDS: Final = 15.0
"""Longest silence of a page that works: it sends a heartbeat every 5 s."""
DATA: Final = "data: {"
"""Beginning of a line with a snapshot; a heartbeat holds a number."""
ADVICE: Final = "give the address of a running coordinator's page, or a run folder"
NOT_FOUND: Final = f"it is not the status page of a fedquilt coordinator; {ADVICE}"


class PageReader:
    """Fetches snapshots of the run behind a page. A request asks only for rounds that are new.

    Args:
        url: address of the page.
        token: token of the page; empty without one.
        patience: seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str = "", patience: float = ANSWER_SECONDS) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.url = url if "://" in url else f"http://{url}"
        self._page = httpx.Client(base_url=self.url, timeout=patience, headers=headers)
        self._run = ""
        self._history: list[RoundResult] = []
        self._replies: list[ReplyRow] = []

    def close(self) -> None:
        """Close the connection."""
        self._page.close()

    def fetch(self) -> Snapshot:
        """Return the newest snapshot, with all rounds of its run.

        Raises:
            PageUnreachableError: nothing answers, or what answers is not a run's page.
        """
        return self._complete(self._get(self._last_round))

    def stream(self) -> Iterator[Snapshot]:
        """Yield each new snapshot, with all rounds of its run, until the page closes the stream.

        Raises:
            PageUnreachableError: nothing answers, or what answers is not a run's page.
        """
        with self._answers(), self._page.stream("GET", "api/v1/stream", params={"since": self._last_round}) as response:
            self._check(response)
            for line in response.iter_lines():
                if line.startswith(DATA):
                    yield self._complete(self._parse(line.removeprefix("data: ")))

    @property
    def _last_round(self) -> int:
        return self._history[-1].round if self._history else 0

    def _complete(self, fresh: Snapshot) -> Snapshot:
        """Return a snapshot with the rounds and replies that earlier ones held."""
        if fresh.run != self._run:  # another run has begun at this address
            fresh = self._get(0) if self._history else fresh
            self._run, self._history, self._replies = fresh.run, [], []
        done = self._last_round
        self._history = [*self._history, *fresh.history] if fresh.history else self._history
        rows = [*(row for row in self._replies if row.place[0] <= done), *fresh.reply_rows]
        self._replies = [row for row in rows if row.place[0] > self._last_round - ROUNDS_KEPT]
        return fresh.model_copy(update={"history": self._history, "reply_rows": self._replies})

    def _get(self, since: int) -> Snapshot:
        with self._answers():
            response = self._page.get("api/v1/snapshot", params={"since": since})
        self._check(response)
        return self._parse(response.content)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PageUnreachableError(f"no status page answers at {self.url}: {error}; {ADVICE}") from None

    def _check(self, response: httpx.Response) -> None:
        if response.status_code in (401, 403):
            advice = f"give its token with --token or {TOKEN_VARIABLE}"
            raise PageUnreachableError(f"the page at {self.url} refuses to show the run: {advice}")
        if response.status_code != httpx.codes.OK:
            raise PageUnreachableError(f"{self.url} answers with status {response.status_code}: {NOT_FOUND}")

    def _parse(self, text: str | bytes) -> Snapshot:
        try:
            return Snapshot.model_validate_json(text)
        except ValidationError:
            raise PageUnreachableError(f"{self.url} does not answer with a run's state: {NOT_FOUND}") from None
