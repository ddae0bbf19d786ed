"""Which boards the relay of a site mutes: those that send what cannot count again and again, and no honest ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from tests.support.hall import BOARDS, Hall

from fedquilt_common.flood_control import admission, flood_guard
from fedquilt_common.flood_control.flood_guard import FIRST_MUTE, Mute


@pytest.fixture(autouse=True)
def nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(flood_guard, "BURST", 0.0)


def mutes(hall: Hall) -> list[Mute]:
    return list(hall.admission.advance())


def send_refused(hall: Hall, number: int) -> None:
    """Send a reply that the coordinator refuses."""
    hall.send("b", 2, hall.reply(2, weight=1.0 + number))
    assert hall.taken() == [[2]]
    hall.answer("rejected", reason="no")


def send_foreign(hall: Hall, number: int) -> None:
    """Send a sum with a client of another board."""
    hall.send("b", 2, hall.sum([2, 3 + number]))


def send_another(hall: Hall, number: int) -> None:
    """Send another reply to a task that is answered."""
    hall.send("b", 2, hall.reply(2, metrics={"loss": float(number)}))


@pytest.mark.parametrize("send", [send_refused, send_foreign, send_another])
def test_a_board_that_sends_what_cannot_count_is_muted(send: Callable[[Hall, int], None], hall: Hall) -> None:
    hall.open(summed=send is send_foreign)
    for number in range(40):
        send(hall, number)
        if begun := mutes(hall):
            break
    assert begun == [Mute("b", FIRST_MUTE)]
    assert number > 2
    hall.taken()
    hall.told("b")
    hall.send("b", 2)
    assert (hall.taken(), hall.told("b")) == ([], [])
    hall.open(2, summed=False)
    hall.send("a", 0)
    assert hall.taken() == [[0]]


def test_replies_that_count_or_wait_or_are_late_cost_nothing(hall: Hall) -> None:
    for number in range(1, 250):
        hall.open(number)
        hall.send_all()
        assert hall.taken() == [[0, 1, 2, 3]]
        if number % 10:
            hall.answer("accepted", [0, 1, 2, 3])
    assert mutes(hall) == []


def test_a_board_that_asks_for_a_receipt_as_agents_do_pays_nothing(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("fedquilt_client.site_run.time", SimpleNamespace(monotonic=lambda: now))
    hall.open()
    for _ in range(300):
        hall.send("a", 0)
        now += 120
    assert mutes(hall) == []
    for _ in range(300):
        hall.send("a", 0)
    assert mutes(hall) == [Mute("a", FIRST_MUTE)]


def test_a_site_with_many_clients_may_offer_all_of_them_again(hall: Hall) -> None:
    """Replies to an exchange that the relay has not opened yet are refused for now, each of them once."""
    hall.appear("a", range(100))
    hall.open(1)
    hall.message = hall.message.model_copy(update={"round": 2})
    for client in [*range(2), *range(4, 100)]:
        hall.send("a", client)
    assert mutes(hall) == []
    assert set(hall.line.inboxes) == {"a"} < set(BOARDS)
