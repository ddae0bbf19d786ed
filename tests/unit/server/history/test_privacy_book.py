"""What the coordinator knows of the privacy that clients spend, and which clients decline."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.history.history import History
from fedquilt_server.history.privacy_book import privacy_rows
from fedquilt_server.round.events import Event, Joined, Rejected, Replied
from fedquilt_server.status.results import PrivacySpent

USED_UP = "the client declines: the privacy budget is used up: 7.995 of epsilon 8"


def reply(client: int, round: int, epsilon: float | None) -> Replied:
    metrics = {} if epsilon is None else {"epsilon": epsilon}
    return Replied(3.0, "pi", client, round, 0, "ab", 1.0, metrics, 640, 2.0)


def decline(client: int) -> Rejected:
    return Rejected(4.0, "pi", client, 2, USED_UP, failed=True, declined=True)


def experiment(**changes: object) -> Experiment:
    fleet = [{"clients": 2}, {"clients": 1, "privacy": {"epsilon": 3}}]
    base = {
        "name": "p",
        "algorithm": {"name": "fedavg"},
        "data": {"set": "digits", "clients": 3},
        "model": {"name": "mlp"},
    }
    return Experiment.model_validate({**base, "privacy": {"epsilon": 8}, "fleet": fleet, "rounds": 2, **changes})


def rows(folder: Path, events: Iterable[Event], kept: int = 0, **changes: object) -> list[PrivacySpent]:
    """Return the rows after all events; the coordinator starts again after the first ``kept`` ones."""
    numbered = list(enumerate(events, 1))
    history = History(folder, [], numbered[:kept])
    for seq, event in numbered[kept:]:
        history.take(seq, event)
    return privacy_rows(experiment(**changes), history.privacy)


EVENTS: list[Event] = [
    Joined(1.0, "pi", 1, (0, 1, 2)),
    reply(1, 1, 4.0),
    reply(2, 1, 2.5),
    reply(1, 2, 7.995),
    reply(1, 1, 4.0),  # sent again; what was spent later stays
    decline(0),
]


@pytest.mark.parametrize("kept", range(len(EVENTS) + 1))
def test_a_row_has_what_a_client_spent_of_its_budget_also_after_a_restart(kept: int, tmp_path: Path) -> None:
    assert [(row.client, row.epsilon, row.budget, row.delta, row.declined) for row in rows(tmp_path, EVENTS, kept)] == [
        (0, None, 8.0, 1e-5, "the privacy budget is used up: 7.995 of epsilon 8"),
        (1, 7.995, 8.0, 1e-5, ""),
        (2, 2.5, 3.0, 1e-5, ""),
    ]


def test_an_agent_that_joins_again_asks_for_its_clients_again(tmp_path: Path) -> None:
    found = rows(tmp_path, [*EVENTS, Joined(9.0, "pi", 2, (0, 1, 2))])
    assert [row.declined for row in found] == ["", "", ""]


def test_a_client_without_privacy_has_a_row_only_if_it_declines(tmp_path: Path) -> None:
    """For example because its board's owner allows no training without privacy."""
    found = rows(tmp_path, EVENTS, privacy=None)
    assert [(row.client, row.budget, row.delta, bool(row.declined)) for row in found] == [
        (0, None, None, True), (2, 3.0, 1e-5, False),
    ]  # fmt: skip


def test_a_decline_is_an_event_of_its_own(tmp_path: Path) -> None:
    history = History(tmp_path, [], enumerate(EVENTS, 1))
    assert [(one.kind, one.level, one.client, one.text) for one in history.events[:1]] == [
        ("declined", "warning", 0, "declines: the privacy budget is used up: 7.995 of epsilon 8")
    ]


def test_every_private_client_has_a_row_before_it_replies(tmp_path: Path) -> None:
    assert [(row.client, row.epsilon) for row in rows(tmp_path, [])] == [(0, None), (1, None), (2, None)]
