"""What a revoked board let the broker retain: the coordinator clears it, whenever the board was revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.faults.conftest import TOPICS

from fedquilt_common.types import Assignments

if TYPE_CHECKING:
    from tests.faults.conftest import Stage

RETAINED = 2000
"""More messages than an agent's bucket has room for."""


def fill(stage: Stage, agent: str) -> None:
    """Let an agent retain messages on all topics that it may write."""
    for number in range(RETAINED):
        stage.broker.publish(TOPICS.reply_chunk(agent, 0, number, 0, 0), b"x", b"", True)
    for topic in (TOPICS.telemetry(agent), TOPICS.requests(agent), TOPICS.presence(agent)):
        stage.broker.publish(topic, b"{}", b"", True)


def retained(stage: Stage, agent: str) -> list[str]:
    return [topic for topic in stage.broker.retained if topic.startswith(TOPICS.presence(agent).rpartition("/")[0])]


@pytest.mark.parametrize("at_start", [True, False])
def test_all_that_a_revoked_board_let_the_broker_retain_is_cleared(
    stage: Stage, undisturbed: str, caplog: pytest.LogCaptureFixture, at_start: bool
) -> None:
    revoked = Assignments(revoked=frozenset({"gone"}))
    if at_start:
        stage.assignments = revoked
        fill(stage, "gone")
    stage.arrive()
    coordinator = stage.coordinator()

    def turn() -> bool:
        if not at_start and stage.assignments is not revoked:
            fill(stage, "gone")
            stage.assignments = revoked
        return stage.turn()

    def is_over() -> bool:
        return turn() or not retained(stage, "gone")

    with stage.closing(coordinator):
        coordinator.execute(is_over)
    assert retained(stage, "gone") == []
    assert not at_start or "floods" not in caplog.text
    with stage.closing(again := stage.coordinator()):
        again.execute(stage.offer)  # again, what the first coordinator had not stored when it ended
    assert stage.sha256 == undisturbed
