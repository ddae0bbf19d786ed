"""Clients decline: page, terminal and results show what was spent, who declines and why the run ended."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.messages import FailedMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.library.run_snapshot import read_snapshot
from fedquilt_server.runs.result_files import read_result
from fedquilt_server.status.results import PrivacySpent
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.status.summary import summary_lines

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

TOPICS = Topics("lab")
Row = tuple[float | None, float | None, str]
USED_UP = "the privacy budget is used up: 7.99 of epsilon 8"
WHY = "every client declines: its privacy budget is used up, or its board's owner allows less"


@pytest.fixture
def private(stage: Stage) -> Stage:
    """A stage whose clients have privacy: they report what they have spent, and client 2 declines in round 2."""
    raw = stage.experiment.model_dump(mode="json")
    settings = {"model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}, "privacy": {"epsilon": 8.0, "delta": 0.001}}
    stage.experiment = Experiment.model_validate({**raw, **settings, "rounds": 3})
    stage.ways = {client: functools.partial(act, client, last=1 if client == 2 else 2) for client in range(3)}
    return stage


def act(client: int, player: Player, message: RoundMessage, last: int) -> None:
    """Reply up to round ``last``, and decline after it."""
    if message.round <= last:
        player.send(player.pack(client, metrics={"epsilon": 3.995 * message.round}))
        return
    told = {"agent": player.name, "run": message.run, "client": client, "reason": USED_UP, "declined": True}
    report = FailedMessage.model_validate({**told, "round": message.round, "exchange": message.exchange})
    player.say(TOPICS.telemetry(player.name), report.encode())


def told(rows: list[PrivacySpent]) -> list[Row]:
    return [(row.epsilon, row.budget, row.declined) for row in rows]


ENDED = [(7.99, 8.0, USED_UP), (7.99, 8.0, USED_UP), (3.995, 8.0, USED_UP)]


def test_all_places_show_why_a_run_ended_in_which_all_clients_decline(private: Stage) -> None:
    private.play()
    assert private.board.current.message == WHY
    result = read_result(private.folder)
    assert (result.status, result.reason, len(result.rounds)) == ("finished", WHY, 2)
    lines = dict(summary_lines(result, private.folder, {}))
    assert lines["ended"] == WHY
    assert lines["privacy"] == "largest epsilon 7.99 of 8 at delta 0.001, 3 of 3 clients have reported one, 3 declined"
    recorded = read_snapshot(private.folder)
    assert [one.kind for one in recorded.events].count("declined") == 3
    for rows in (private.board.current.privacy, result.privacy, recorded.privacy):
        assert told(rows) == ENDED


def test_a_coordinator_that_restarts_shows_the_privacy_again(private: Stage) -> None:
    shown: list[list[Row]] = []

    def turn() -> bool:
        private.turn()
        shown.append(told(private.board.current.privacy))
        return False

    private.arrive()
    with private.closing(private.coordinator()) as first:
        first.execute(lambda: turn() or len(private.board.current.history) > 1)
    assert shown[0] == [(None, 8.0, "")] * 3
    assert shown[-1] == [(7.99, 8.0, ""), (7.99, 8.0, ""), (3.995, 8.0, USED_UP)]
    private.board = StatusStore()
    with private.closing(private.coordinator()) as again:
        again.execute(turn)
    assert shown[-1] == ENDED
