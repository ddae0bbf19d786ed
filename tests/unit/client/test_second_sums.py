"""A board with several sums sends them one after the other, while the relay of its site waits for other boards."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from tests.support.hall import MODEL, Hall
from tests.support.relay_bench import RelayBench

from fedquilt_client import relay, site_run, sum_pools, uploads
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import write_arrays
from fedquilt_common.wire.messages import ReceiptMessage


def exchange(bench: RelayBench, hall: Hall) -> list[list[int]]:
    """Carry what board ``a`` has sent to the relay, and its receipts back; returns whose replies the board sent."""
    sent, bench.line.sent = bench.line.sent, []
    for client, payload, digest in sent:
        path = hall.folder / "from-a"
        path.write_bytes(payload)
        hall.send("a", client, Blob(path, digest, len(payload)))
    for receipt in hall.line.inboxes.pop("a", []):
        assert isinstance(receipt, ReceiptMessage)
        bench.relay.take_receipt(receipt)
    return [bench.members(payload) or [client] for client, payload, _ in sent]


def test_a_board_sends_its_second_sum_while_the_relay_waits_for_another_board(
    hall: Hall, bench: RelayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(uploads, "TOGETHER_BYTES", 1)
    monkeypatch.setattr(site_run, "TOGETHER_BYTES", 1)
    monkeypatch.setattr(sum_pools, "MOST_MEMBERS", 2)
    for board, clients in (("b", ()), ("c", (4,)), ("a", (0, 1, 2, 3))):
        hall.appear(board, clients)
    hall.open()
    bench.run.round = hall.message
    bench.run.given_up[4, hall.fingerprint(4)] = "is another board's"
    write_arrays(bench.store.patch(hall.message.patches[0].digest), MODEL)
    bench.relay.review(lambda _: True)
    for client in range(4):
        bench.relay.offer(bench.reply(client, {"w": MODEL["w"] + client}), intact=True)
    sent = []
    for _ in range(2 * relay._POSTPONED + 2):
        sent += exchange(bench, hall)
        now += 60
        bench.relay.advance()
    assert sent[:2] == [[0, 1], [2, 3]]
    assert [len(clients) for clients in sent] == [2] * len(sent)
    assert hall.taken() == []
    hall.send("c", 4)
    taken = []
    while found := hall.taken():
        taken += found
        hall.answer("accepted", found[0] if len(found[0]) > 1 else [])
    assert sorted(taken) == [[0, 1], [2, 3], [4]]
    while bench.line.sent or hall.line.inboxes.get("a"):
        exchange(bench, hall)
        now += 60
        bench.relay.advance()
    assert not bench.relay.busy


def test_a_sum_that_was_postponed_is_settled_at_once(bench: RelayBench) -> None:
    """Its other members travel again now, and not when the board would have asked again."""
    bench.open()
    bench.offer(range(5))
    sent = bench.line.sent[-1:]
    bench.answer("rejected", range(5), final=False, reason="the relay of the site has it")
    bench.line.sent = sent
    bench.answer("duplicate", [1])
    assert bench.take() == [[0, 2, 3, 4]]
