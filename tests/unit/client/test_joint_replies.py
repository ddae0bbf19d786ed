"""The reply of a joint job: a sum that the relay adds to others, and takes apart where it cannot travel."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.relay_bench import MODEL, RelayBench

from fedquilt_client.records import JointReply
from fedquilt_common.partial_sums.members import SumMember
from fedquilt_common.partial_sums.partial_sum import write_partial_sum
from fedquilt_common.wire.codec import BytesArrays
from fedquilt_common.wire.messages import SumHeader


def joint(bench: RelayBench, clients: Sequence[int]) -> JointReply:
    """Return the reply of a joint job of some clients, which the store holds."""
    parts = [bench.reply(client) for client in clients]
    opened = [BytesArrays(bench.store.blob(part).path.read_bytes()) for part in parts]
    base = next(bench.store.patches.iterdir()).name
    header = SumHeader(run="run", round=1, exchange=0, base=base)
    members = [SumMember(part.client, part.task, 1.0 + part.client, {"loss": part.client / 7}) for part in parts]
    path = bench.store.drafts(clients[0]).reply
    blob = write_partial_sum(path, header, members, opened, MODEL)
    ids = "run", parts[0].client, 1, 0, parts[0].task
    tasks = tuple(part.task for part in parts)
    reply = JointReply(*ids, path.name, blob.digest, blob.size, clients=tuple(clients), tasks=tasks)
    return bench.store.hold(reply)


def test_the_replies_of_joint_jobs_and_single_ones_give_the_sum_of_all(bench: RelayBench) -> None:
    bench.open()
    bench.offer(range(5))
    single = bench.line.sent[-1][1]
    bench.take()
    bench.start()
    bench.open()
    bench.relay.offer(joint(bench, [0, 2]), intact=True)
    bench.offer([4])
    assert bench.take() == []
    bench.relay.offer(joint(bench, [1, 3]), intact=True)
    assert bench.line.sent[-1][1] == single
    assert bench.take() == [[0, 1, 2, 3, 4]]


def test_the_reply_of_a_joint_job_travels_as_a_sum_also_if_it_is_the_only_one(bench: RelayBench) -> None:
    bench.open([1, 2])
    bench.relay.offer(joint(bench, [1, 2]), intact=True)
    assert bench.line.sent
    bench.answer("accepted", [1, 2])
    bench.relay.advance()
    assert bench.take() == []
    assert bench.damaged == []


def test_a_joint_job_with_a_refused_client_is_taken_apart(bench: RelayBench) -> None:
    """Its tasks are done again one by one; those that count are not sent again."""
    bench.open()
    reply = joint(bench, [0, 1, 2])
    bench.relay.offer(reply, intact=True)
    bench.offer([3, 4])
    bench.answer("accepted", [0, 2, 3, 4])
    assert bench.damaged == [reply]
    bench.store.forget(reply)
    bench.offer([0, 1, 2])
    assert bench.take() == [[1]]


def test_a_damaged_reply_of_a_joint_job_is_awaited_from_each_client(bench: RelayBench) -> None:
    bench.open()
    reply = joint(bench, [0, 1, 2])
    bench.store.blob(reply).path.write_bytes(b"damaged")
    bench.relay.offer(reply)
    bench.offer([3, 4])
    assert bench.take() == []
    assert bench.damaged == [reply]
    bench.offer([0, 2])
    assert bench.take() == []
    bench.offer([1])
    assert bench.take() == [[0, 1, 2, 3, 4]]


def test_a_group_whose_part_a_restart_has_lost_does_not_hold_the_others_back(bench: RelayBench) -> None:
    bench.open()
    bench.relay.offer(joint(bench, [1, 2, 3]), intact=True)
    bench.offer([0, 4])
    assert bench.take() == [[0, 1, 2, 3, 4]]
    bench.start()
    bench.open()
    bench.offer([0, 2, 3, 4])
    assert bench.take() == []
    bench.offer([1])
    assert bench.take() == [[0, 1, 2, 3, 4]]
