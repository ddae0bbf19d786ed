"""What an agent reports of itself is an event of the run, and changes no result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.faults.conftest import TOPICS

from fedquilt_common.wire.messages import NoticeMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_server.library.run_snapshot import read_snapshot
from fedquilt_server.runs.result_files import read_result

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage


@pytest.mark.parametrize(
    ("kind", "event", "level"),
    [
        ("memory-lost", "memory lost", "warning"),
        ("out-of-memory", "out of memory", "warning"),
        ("kind-of-a-later-version", "notice", "warning"),
    ],
)
def test_a_notice_is_an_event(kind: str, event: str, level: str, stage: Stage, undisturbed: str) -> None:
    def report(player: Player, message: RoundMessage) -> None:
        if player.name == "pi" and message.round == 2:
            place = {"run": message.run, "client": 1, "round": 2, "exchange": 0}
            notice = NoticeMessage.model_validate({"agent": "pi", "boot": 1, "kind": kind, "text": "of note", **place})
            player.say(TOPICS.telemetry("pi"), notice.encode())

    stage.play(report)
    assert stage.sha256 == undisturbed
    (found,) = (one for one in read_snapshot(stage.folder).events if one.text == "of note")
    assert (found.kind, found.level, found.board, found.client, found.round) == (event, level, "pi", 1, 2)
    warned = [warning for warning in read_result(stage.folder).warnings if "without the private memory" in warning]
    assert len(warned) == (kind == "memory-lost")


def test_a_wrong_message_of_a_site_is_an_event_without_a_board(stage: Stage, undisturbed: str) -> None:
    stage.play(lambda player, message: player.say(TOPICS.site("far"), b"maybe"))
    assert stage.sha256 == undisturbed
    found = [one for one in read_snapshot(stage.folder).events if "not 0 or 1" in one.text]
    assert found
    assert {(one.kind, one.board) for one in found} == {("rejected", None)}
