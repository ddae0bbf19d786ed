"""A page whose answer is no snapshot is a clear error; one that does not answer is waited for."""

from __future__ import annotations

import httpx
import pytest

from fedquilt_common.errors import RunFailedError
from fedquilt_server.simulate.status_poll import StatusPoll
from fedquilt_server.status.snapshot import Snapshot


def poll(answer: httpx.Response | None, monkeypatch: pytest.MonkeyPatch) -> StatusPoll:
    def respond(request: httpx.Request) -> httpx.Response:
        if answer is None:
            raise httpx.ConnectError("refused")
        return answer

    client = httpx.Client(base_url="http://page", transport=httpx.MockTransport(respond))
    monkeypatch.setattr(httpx, "Client", lambda **_: client)
    return StatusPoll("http://page")


def test_a_valid_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    with poll(httpx.Response(200, text=Snapshot(name="a").model_dump_json()), monkeypatch) as page:
        found = page.fetch()
    assert found is not None
    assert found.name == "a"


@pytest.mark.parametrize(("text", "place"), [('{"until": 1.5}', "until"), ("?", "the answer")])
def test_an_invalid_snapshot(text: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        poll(httpx.Response(200, text=text), monkeypatch) as page,
        pytest.raises(RunFailedError, match=rf"^the run's status page at http://page/api/status\S* .* \({place}: "),
    ):
        page.fetch()


def test_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with poll(None, monkeypatch) as page:
        assert page.fetch() is None
