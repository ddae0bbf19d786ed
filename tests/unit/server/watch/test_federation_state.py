"""What a federation's control messages reveal of a run."""

from __future__ import annotations

from fedquilt_common.wire.message_base import WireMessage
from fedquilt_common.wire.messages import (
    AgentPresence,
    CoordinatorPresence,
    EndMessage,
    OtherReply,
    Outcome,
    ReceiptMessage,
    RunMessage,
    Telemetry,
)
from fedquilt_common.wire.round_messages import RoundMessage, TaskMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.watch.federation_state import FederationState

TOPICS = Topics("lab")
EXPERIMENT = {"name": "x", "rounds": 9, "data": {"set": "digits", "clients": 4}, "algorithm": {"name": "fedavg"}}
RUN = RunMessage(run="x-1", experiment=EXPERIMENT)


def open_exchange(round: int) -> RoundMessage:
    return RoundMessage(
        run="x-1", round=round, exchange=0, tasks=[TaskMessage(clients=[0, 1, 3], kind="t", patches=[])]
    )


def receipt(client: int, round: int, outcome: Outcome = "accepted") -> ReceiptMessage:
    return ReceiptMessage(run="x-1", client=client, round=round, exchange=0, digest="0" * 64, outcome=outcome)


def take(state: FederationState, topic: str, message: WireMessage | None, now: float = 5.0) -> FederationState:
    payload = message.encode() if message else b""
    return state.take(topic, payload, retained=False, now=now)


def test_from_the_first_presence_to_the_end() -> None:
    state = FederationState(TOPICS)
    assert (state.snapshot(8.0).name, state.snapshot(8.0).broker_connected) == ("", False)
    state = take(state, TOPICS.coordinator, CoordinatorPresence(online=True, epoch=1, run="x-1"))
    state = take(state, TOPICS.run, RUN)
    state = take(state, TOPICS.presence("pi"), AgentPresence(agent="pi", online=True, boot=1, clients=[0, 1]))
    waiting = state.snapshot(8.0)
    assert (waiting.name, waiting.algorithm, waiting.dataset, waiting.rounds) == ("x", "fedavg", "digits", 9)
    assert (waiting.phase, waiting.awaited, waiting.waits) == ("waiting", [2, 3], True)

    state = take(state, TOPICS.round, open_exchange(1), now=7.0)
    state = take(state, TOPICS.inbox("pi"), receipt(1, 1))
    state = take(state, TOPICS.inbox("pi"), receipt(0, 1, "late"))
    state = take(state, TOPICS.inbox("pi"), receipt(0, 7))
    state = take(state, TOPICS.telemetry("pi"), Telemetry(agent="pi", boot=1, temperature=50.0, training={"0": 0.5}))
    training = state.snapshot(8.0)
    assert (training.phase, training.round, training.tasks, training.replies) == ("training", 1, 3, 1)
    assert (training.awaited, training.opened_at, training.late, training.accepted) == ([0, 3], 7.0, 1, 2)
    assert (training.boards[0].temperature, training.boards[0].training) == (50.0, {0: 0.5})

    again = take(state, TOPICS.round, open_exchange(1), now=9.0)  # published again after a restart
    assert (again.snapshot(8.0).replies, again.snapshot(8.0).opened_at) == (1, 7.0)
    state = take(state, TOPICS.round, open_exchange(2))
    assert state.snapshot(8.0).awaited == [0, 1, 3]

    state = take(state, TOPICS.presence("pi"), AgentPresence(agent="pi", online=False, boot=1))
    assert [board.health for board in state.snapshot(8.0).boards] == ["offline"]
    for topic in (TOPICS.round, TOPICS.run):
        state = take(state, topic, None)
    state = take(state, TOPICS.end, EndMessage(run="x-1", reason="all rounds are done"))
    ended = state.snapshot(8.0)
    assert (ended.phase, ended.round, ended.awaited, ended.name) == ("finished", 9, [], "x")
    assert take(state, TOPICS.run, RunMessage(run="x-2", experiment=EXPERIMENT)).snapshot(8.0).phase == "waiting"


def test_a_board_that_hangs_becomes_silent() -> None:
    state = take(
        FederationState(TOPICS), TOPICS.presence("pi"), AgentPresence(agent="pi", online=True, boot=1), now=5.0
    )
    state = take(state, TOPICS.telemetry("pi"), Telemetry(agent="pi", boot=1, interval=5.0, power=4.0), now=6.0)
    shown = [state.snapshot(now).boards[0] for now in (12.0, 60.0)]
    assert [(board.health, board.power) for board in shown] == [("online", 4.0), ("silent", 4.0)]


def test_an_experiment_of_another_version_breaks_nothing() -> None:
    odd = RunMessage(run="x-1", experiment={"name": 3, "rounds": "many", "data": [1], "algorithm": None})
    snapshot = take(FederationState(TOPICS), TOPICS.run, odd).snapshot(8.0)
    assert (snapshot.name, snapshot.rounds, snapshot.awaited) == ("", 0, [])


def test_a_receipt_for_several_replies_counts_each() -> None:
    others = [OtherReply(client=client, digest="1" * 64) for client in (1, 3)]
    state = take(FederationState(TOPICS), TOPICS.round, open_exchange(1))
    state = take(state, TOPICS.inbox("pi"), receipt(0, 1).model_copy(update={"others": others}))
    assert (state.snapshot(8.0).accepted, state.snapshot(8.0).awaited) == (3, [])


def test_the_boards_behind_a_site_that_is_cut_off_are_unreachable() -> None:
    state = FederationState(TOPICS)
    for name, site in (("a", "hall"), ("b", None)):
        state = take(state, TOPICS.presence(name), AgentPresence(agent=name, online=True, boot=1, site=site))
    for payload, health in ((b"0", "unreachable"), (b"1", "online")):
        state = state.take(TOPICS.site("hall"), payload, retained=True, now=1.0)
        assert {board.agent: board.health for board in state.snapshot(1.0).boards} == {"a": health, "b": "online"}
