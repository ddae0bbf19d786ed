"""Which board of a site hosts a client, as the site's relay sees it."""

from __future__ import annotations

from typing import Any

import pytest

from fedquilt_client import site_boards
from fedquilt_client.site_boards import MissingReplies, SiteBoards
from fedquilt_common.errors import PayloadError
from fedquilt_common.wire.messages import AgentPresence


def here(agent: str, *clients: int, boot: int = 1, site: str | None = "hall", **changes: Any) -> AgentPresence:
    return AgentPresence(agent=agent, online=True, boot=boot, clients=list(clients), site=site, **changes)


def gone(agent: str, boot: int = 1) -> AgentPresence:
    return AgentPresence(agent=agent, online=False, boot=boot)


@pytest.fixture
def boards() -> SiteBoards:
    return SiteBoards("hall")


def test_the_first_board_that_claims_a_client_hosts_it(boards: SiteBoards) -> None:
    assert boards.take(here("a", 0, 1)) == {0, 1}
    assert boards.take(here("b", 1, 2)) == {2}
    assert [boards.host_of(client) for client in range(4)] == ["a", "a", "b", None]
    assert boards.refusal("b", 1) == "agent b does not host client 1"
    assert boards.refusal("a", 1) == ""


def test_clients_move_when_their_board_leaves_or_gives_them_up(boards: SiteBoards) -> None:
    boards.take(here("a", 0, 1))
    boards.take(here("b", 1, 2))
    boards.take(gone("a"))
    assert [boards.host_of(client) for client in range(3)] == ["a", "b", "b"]
    assert not boards.is_online(0)
    boards.take(here("c", 0))
    assert boards.host_of(0) == "c"
    boards.take(here("b", 2))
    assert boards.host_of(1) is None
    assert boards.take(here("a", 0, 1, boot=2)) == {1}


def test_a_late_will_takes_nothing_from_its_successor(boards: SiteBoards) -> None:
    boards.take(here("a", 0, boot=5))
    boards.take(gone("a", boot=4))
    assert boards.is_online(0)


def test_boards_at_other_places_and_relays_host_nothing(boards: SiteBoards) -> None:
    assert boards.take(here("a", 0, site=None)) == boards.take(here("b", 0, site="roof")) == set()
    assert boards.take(here("c", 0, site_relay=True)) == set()
    assert "no presence of x with `site: hall`" in boards.refusal("x", 0)


def test_the_configuration_decides_whose_clients_are_whose() -> None:
    boards = SiteBoards("hall", {0: "a", 1: "b"})
    boards.take(here("thief", 0, 1))
    assert boards.take(here("a", 0, 7)) == {0}
    assert boards.host_of(7) is None
    assert "does not have client 0 of thief in its configuration" in boards.refusal("thief", 0)


def test_a_flood_of_boards_is_refused(boards: SiteBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_boards, "MOST_AGENTS", 2)
    monkeypatch.setattr(site_boards, "MOST_CLAIMS", 4)
    boards.take(here("a", 0, 1))
    with pytest.raises(PayloadError, match="more than 2 boards or 4 clients"):
        boards.take(here("b", 2, 3, 4))
    boards.take(here("b", 2))
    with pytest.raises(PayloadError, match="start fewer agents"):
        boards.take(here("c", 3))


def test_no_reply_comes_of_a_failed_client_or_of_a_board_that_is_gone(boards: SiteBoards) -> None:
    boards.take(here("a", 0, 1))
    missing = MissingReplies(boards)
    missing.add((0, "task"))
    assert (0, "task") in missing
    assert (1, "task") not in missing
    missing.discard((0, "task"))
    assert (0, "task") not in missing
    boards.take(gone("a"))
    assert (1, "task") in missing


def test_a_board_that_moves_to_another_place_loses_its_clients(boards: SiteBoards) -> None:
    boards.take(here("a", 0))
    boards.take(here("b", 0))
    boards.take(here("a", 0, site="roof", boot=2))
    assert boards.host_of(0) == "b"
    boards.take(here("b", 0, site=None, boot=2))
    assert boards.host_of(0) is None
