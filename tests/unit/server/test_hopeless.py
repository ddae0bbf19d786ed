"""When a simulated run gives up, and when it must not."""

from __future__ import annotations

from typing import Any

import pytest

from fedquilt_common.errors import RunFailedError
from fedquilt_common.sections import Participation
from fedquilt_server.hopeless import Hopeless
from fedquilt_server.snapshot import RejectedReply, Snapshot


def refused(client: int, reason: str = "the client failed: the loss became nan", round: int = 2) -> RejectedReply:
    return RejectedReply(at=1.0, agent="a", client=client, round=round, reason=reason)


def shot(*rejections: RejectedReply, **more: Any) -> Snapshot:
    return Snapshot(**{"round": 2, "tasks": 4, "replies": 2, "rejections": list(rejections), **more})


def looked(
    first: Snapshot, second: Snapshot | None = None, quorum: int = 4, later: float = 11.0, **policy: Any
) -> None:
    watch = Hopeless(Participation(per_round=4, quorum=quorum, **policy))
    watch.look(first, 100.0)
    watch.look(second or first, 100.0 + later)


def test_a_quorum_that_cannot_be_reached_any_more_ends_the_run() -> None:
    with pytest.raises(
        RunFailedError, match=r"round 2 .* 1 of 4 clients failed, such as client 3: the loss became nan"
    ):
        looked(shot(refused(3)))
    with pytest.raises(RunFailedError, match="2 of 4"):
        looked(shot(refused(3), refused(1)), quorum=3)


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        (shot(), None, {}),
        (shot(refused(3)), None, {"quorum": 3}),
        (shot(refused(3)), None, {"later": 9.0}),
        (shot(refused(3)), None, {"shortfall": "replace"}),
        (shot(refused(3, round=1)), None, {}),
        (shot(refused(3, "of another shape")), None, {}),
        (shot(refused(3)), shot(refused(3), replies=3), {}),  # something moves
        (shot(refused(3), replies=4), None, {}),  # it has answered since
    ],
)
def test_as_long_as_there_is_hope_it_goes_on(first: Snapshot, second: Snapshot | None, more: dict[str, Any]) -> None:
    looked(first, second, **more)
