"""Partial sums from agents: what counts, what is refused with a reason and the clients, and that nothing is lost."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.partial_sums.members import SumMember, encode_members
from fedquilt_common.partial_sums.partial_sum import write_partial_sum
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.messages import SumHeader
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_server.round.events import Replied

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Parcel, Player, Stage

Change = Callable[[dict[str, Any]], object]


def make_exact(stage: Stage) -> Stage:
    raw = stage.experiment.model_dump(mode="json")
    stage.experiment = Experiment.model_validate({**raw, "exact_sums": True})
    return stage


def member(message: RoundMessage, client: int) -> SumMember:
    return SumMember(client, message.fingerprint(message.tasks[0], client), 1.0 + client, {})


def pack_sum(
    player: Player,
    message: RoundMessage,
    added: Sequence[int] = (0, 1),
    listed: Sequence[int] | None = None,
    members: Callable[[SumMember], SumMember] = lambda one: one,
    arrays: Change | None = None,
    received: Arrays | None = None,
    **header: Any,
) -> Parcel:
    """Return a sum of the honest replies of ``added``, which lists ``listed``; the other arguments change it."""
    from tests.faults.conftest import Parcel, answer

    model = player.model()
    assert model is not None
    known = {"run": message.run, "round": message.round, "exchange": 0, "base": message.patches[0].digest}
    path = player.folder / f"sum-{len(list(player.folder.iterdir()))}"
    own = [member(message, client) for client in added]
    replies = [answer(model, client) for client in added]
    blob = write_partial_sum(
        path, SumHeader(**{**known, **header}), own, replies, model if received is None else received
    )
    content = FileArrays(path)
    parts: dict[str, Any] = {name: np.array(content[name]) for name in content}
    if listed is not None or members is not None:
        shown = [members(member(message, client)) for client in (added if listed is None else listed)]
        parts["members"] = np.frombuffer(encode_members(shown), np.uint8)
    if arrays is not None:
        arrays(parts)
    blob = write_arrays(path.with_suffix(".changed"), parts, None, content.metadata)
    return Parcel(player.name, added[0], message.round, 0, blob)


@pytest.mark.usefixtures("storage")
def test_a_sum_counts_for_each_of_its_clients(stage: Stage, single_replies: str) -> None:
    make_exact(stage)
    stage.ways = {0: lambda player, message: player.send(pack_sum(player, message)), 1: lambda *_: None}
    stage.play()
    assert stage.sha256 == single_replies
    assert [(row.clients, row.duplicates, row.rejected) for row in stage.rows] == [(3, 0, 0)] * 2
    receipts = [receipt for receipt in stage.players["pi"].receipts if receipt.outcome == "accepted"]
    assert [(receipt.round, receipt.client, receipt.members) for receipt in receipts] == [
        (1, 0, [0, 1]),
        (2, 0, [0, 1]),
    ]
    replies = [event for event in stage.events() if isinstance(event, Replied) and event.agent == "pi"]
    assert [(reply.client, reply.weight, reply.carrier, reply.more) for reply in replies] == [
        (0, 1.0, 0, 1),
        (1, 2.0, 0, 0),
    ] * 2


def test_a_sum_that_is_sent_twice_counts_once(stage: Stage, single_replies: str) -> None:
    make_exact(stage)

    def twice(player: Player, message: RoundMessage) -> None:
        parcel = player.send(pack_sum(player, message))
        player.send_chunks(parcel, parcel.headers)

    stage.ways = {0: twice, 1: lambda *_: None}
    stage.play()
    assert stage.sha256 == single_replies
    told = [receipt for receipt in stage.players["pi"].receipts if receipt.round == 1]
    assert [(receipt.outcome, receipt.members) for receipt in told] == [("accepted", [0, 1]), ("duplicate", [0, 1])]


def in_parts(name: str, value: np.ndarray[Any, Any]) -> Change:
    return lambda parts: parts.update({name: value})


REFUSED: dict[str, tuple[dict[str, Any], str, list[int]]] = {
    "adds a client twice": ({"added": (0, 1, 1), "listed": (0, 1)}, "adds client 1 twice", []),
    "lists a client twice": ({"added": (0, 1, 1)}, "lists client 1 twice", []),
    "leaves a client out": ({"added": (0,), "listed": (0, 1)}, "lists client 1, but leaves its reply out", []),
    "adds a client that it does not list": ({"added": (0, 1), "listed": (0,)}, "has one reply only|not that of", []),
    "another agent's client": ({"added": (0, 1, 2)}, r"cannot count \(2\): agent pi does not host them", [2]),
    "a client that nobody has": ({"added": (0, 1, 77)}, r"cannot count \(77\)", [77]),
    "another weight": ({"members": lambda one: replace(one, weight=one.weight * 2)}, "other weights", []),
    "another task": ({"members": lambda one: replace(one, task="0" * 16)}, "answers another task", [0]),
    "another base": ({"base": "0" * 64}, "made from other arrays", []),
    "another run": ({"run": "other"}, "names another run", []),
    "another round": ({"round": 7}, "names another run or exchange", []),
    "not in order": ({"added": (1, 0)}, "does not list its clients in order", []),
    "garbage members": ({"arrays": in_parts("members", np.zeros(9, np.uint8))}, "cannot be inflated|does not end", []),
    "garbage numbers": ({"arrays": in_parts("sum:part0.weight", np.full(99, 7, np.uint8))}, "partial sum|of a sum", []),
    "no seal": ({"arrays": lambda parts: parts.pop("seal")}, "no members or no seal", []),
    "an array more": ({"arrays": in_parts("sum:more", np.zeros(4, np.uint8))}, "other arrays than its task", []),
    "an array less": ({"arrays": lambda parts: parts.pop("sum:part0.weight")}, "other arrays than its task", []),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_sums_are_refused_and_nothing_is_lost(name: str, stage: Stage, single_replies: str) -> None:
    changes, reason, named = REFUSED[name]
    make_exact(stage)

    def misbehave(player: Player, message: RoundMessage) -> None:
        if player.name == "pi" and message.round == 2:
            player.send(pack_sum(player, message, **changes))

    stage.play(misbehave)
    assert stage.sha256 == single_replies
    assert [row.clients for row in stage.rows] == [3, 3]
    (refusal,) = [receipt for receipt in stage.players["pi"].receipts if receipt.outcome != "accepted"]
    assert (refusal.outcome, refusal.final) == ("rejected", True)
    assert re.search(reason, refusal.reason)
    assert refusal.members == named
    assert not any(event.failed for event in stage.refusals())


def test_a_sum_with_a_client_that_has_been_counted_names_it(stage: Stage, single_replies: str) -> None:
    make_exact(stage)

    def late_sum(player: Player, message: RoundMessage) -> None:
        player.send(player.pack(1))
        player.send(pack_sum(player, message))

    stage.ways = {0: late_sum, 1: lambda player, _: player.send(player.pack(0))}
    stage.play()
    assert stage.sha256 == single_replies
    told = [receipt for receipt in stage.players["pi"].receipts if receipt.outcome == "duplicate"]
    assert [(receipt.round, receipt.members) for receipt in told] == [(1, [1]), (2, [1])]
    assert all("cannot count (1)" in receipt.reason for receipt in told)


def test_without_exact_sums_a_sum_is_refused(stage: Stage, undisturbed: str) -> None:
    def act(player: Player, message: RoundMessage) -> None:
        if player.name == "pi":
            player.send(pack_sum(player, message))

    stage.play(act)
    assert stage.sha256 == undisturbed
    told = [receipt for receipt in stage.players["pi"].receipts if receipt.outcome == "rejected"]
    assert [receipt.round for receipt in told] == [1, 2]
    assert all("must travel one by one" in receipt.reason for receipt in told)


def test_a_crash_between_sum_and_close_changes_no_bit(stage: Stage, single_replies: str) -> None:
    """The coordinator restarts after it has journaled the sum: it replays the members and asks for the others."""
    make_exact(stage)
    stage.ways = {0: lambda player, message: player.send(pack_sum(player, message)), 1: lambda *_: None}
    held = dict(stage.ways)
    stage.ways[2] = lambda *_: None
    stage.arrive()
    first = stage.coordinator()
    with stage.closing(first):
        steps = iter(range(40))
        first.execute(lambda: stage.turn() or next(steps, None) is None)
        exchange = first.machine.exchange
        assert exchange is not None
        assert sorted(exchange.replies) == [0, 1]
    stage.ways = held
    stage.forget_answers()
    again = stage.coordinator()
    with stage.closing(again):
        again.execute(stage.turn)
        assert again.run.folder.finished
    assert stage.sha256 == single_replies


def test_a_journal_that_lost_a_member_starts_the_round_again(stage: Stage, single_replies: str) -> None:
    """A damaged row drops the events after it. The sum would count without all its members, so the round restarts."""
    make_exact(stage)
    stage.ways = {0: lambda player, message: player.send(pack_sum(player, message)), 1: lambda *_: None}
    held = dict(stage.ways)
    stage.ways[2] = lambda *_: None
    stage.arrive()
    first = stage.coordinator()
    with stage.closing(first):
        steps = iter(range(40))
        first.execute(lambda: stage.turn() or next(steps, None) is None)
        first.run.folder.journal.close()
    with closing(sqlite3.connect(stage.folder / "journal.sqlite")) as db, db:
        (last,) = db.execute("SELECT max(seq) FROM events WHERE kind = 'Replied'").fetchone()
        db.execute("UPDATE events SET body = replace(body, '2.0', '3.0') WHERE seq = ?", (last,))
    stage.ways = held
    stage.forget_answers()
    again = stage.coordinator()
    with stage.closing(again):
        again.execute(stage.offer)
        assert again.run.folder.finished
    assert stage.sha256 == single_replies
