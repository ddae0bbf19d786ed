"""The part of the page about the privacy that clients spend."""

from __future__ import annotations

from typing import Any

from fedquilt_server.status.results import PrivacySpent, RoundResult
from fedquilt_server.status.snapshot import BoardStatus, Snapshot
from fedquilt_server.web import view
from fedquilt_server.web.fragments import Renderer
from fedquilt_server.web.privacy_view import CLIENTS_SHOWN, view_privacy


def spent(client: int, epsilon: float | None = 5.0, **changes: Any) -> PrivacySpent:
    return PrivacySpent.model_validate({"client": client, "epsilon": epsilon, "budget": 20.0, "delta": 1e-5, **changes})


def parts(*rows: PrivacySpent) -> dict[str, str]:
    snapshot = Snapshot(privacy=list(rows))
    return Renderer().parts(snapshot, view.summarise(snapshot, view.summarise_results([])))


def test_each_client_has_its_board_and_what_it_spent_and_those_that_decline_are_first() -> None:
    rows = [spent(0), spent(1, None), spent(2, 25.0, budget=3.0), spent(3, declined="used up")]
    found = view_privacy(Snapshot(privacy=rows, boards=[BoardStatus(agent="pi", clients=[0, 3])])).clients
    assert [(one.client, one.board, one.spent, one.budget, one.share, one.declined) for one in found] == [
        (3, "pi", "5", "20", 0.25, "used up"), (0, "pi", "5", "20", 0.25, ""),
        (1, "–", "–", "20", 0.0, ""), (2, "–", "25", "3", 1.0, ""),  # noqa: RUF001
    ]  # fmt: skip


def test_a_client_without_privacy_that_declines_shows_the_reason_only() -> None:
    shown = parts(spent(0, None, budget=None, delta=None, declined="the owner allows less"))
    assert "declined: <bdi>the owner allows less</bdi>" in shown["privacy"]
    assert "None" not in shown["privacy"]
    assert "amount" not in shown["privacy"]
    assert ">1 client declined<" in shown["privacy"]
    assert "epsilon" not in shown["summary"]


def test_the_privacy_of_the_coordinator_is_shown() -> None:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    spent_by_all = {"epsilon": 4.25, "epsilon_known": 7.5, "budget": 20.0, "delta": 0.001, "noise": 1.5, "clip": 0.5}
    history = [RoundResult.model_validate({**zeros, "round": 1, "central_privacy": spent_by_all})]
    snapshot = Snapshot(history=history)
    shown = Renderer().parts(snapshot, view.summarise(snapshot, view.summarise_results(history)))
    assert "epsilon 4.25 of 20 at delta 0.001 for each client, by the coordinator&#39;s noise; 7.5" in shown["privacy"]
    assert '<p class="value" data-testid="epsilon">4.25<small> of 20</small></p>' in shown["summary"]


def test_a_big_run_shows_those_that_decline_and_counts_the_rest() -> None:
    rows = [spent(client, declined="used up" if client == 900 else "") for client in range(1000)]
    found = view_privacy(Snapshot(privacy=rows))
    assert (found.clients[0].client, len(found.clients), found.more) == (900, CLIENTS_SHOWN, 1000 - CLIENTS_SHOWN)


def test_a_run_without_privacy_has_neither_part_nor_tile() -> None:
    shown = parts()
    assert not shown["privacy"].strip()
    assert "epsilon" not in shown["summary"]


def test_the_tile_has_the_largest_epsilon_and_reasons_are_escaped() -> None:
    shown = parts(spent(0, 19.991), spent(1, declined="<b>used up"))
    assert '<p class="value" data-testid="epsilon">19.99<small> of 20</small></p>' in shown["summary"]
    assert "at delta 1e-5" in shown["summary"]
    assert "declined: <bdi>&lt;b&gt;used up</bdi>" in shown["privacy"]
