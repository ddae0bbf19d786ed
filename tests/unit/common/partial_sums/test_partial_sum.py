"""Partial sums: their numbers, their members, and what is refused."""

from __future__ import annotations

import itertools
import json
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.aggregation.exact_sum import ExactSum
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.errors import (
    MissingMemberError,
    PayloadError,
    ProtocolError,
    RepeatedMemberError,
    SumMismatchError,
)
from fedquilt_common.partial_sums import exact_mean as exact_mean_module
from fedquilt_common.partial_sums import partial_sum
from fedquilt_common.partial_sums.digit_planes import (
    _BEYOND,
    _LOWEST,
    count_most_bytes,
    decode_block,
    deflate,
    encode_block,
)
from fedquilt_common.partial_sums.exact_mean import GroupedReplies, exact_mean
from fedquilt_common.partial_sums.members import SumMember, decode_members, encode_members, make_seal
from fedquilt_common.partial_sums.partial_sum import PartialSum, write_partial_sum
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import BytesArrays, FileArrays, write_arrays
from fedquilt_common.wire.messages import SUM_KEY, SumHeader

HEADER = SumHeader(run="run", round=1, exchange=0)
SIZES = {"w": 300, "steps": 1, "odd": 5, "mask": 3}


FP32_MAX = float(np.finfo(np.float32).max)


def make_member(client: int, weight: float = 1.0) -> SumMember:
    return SumMember(
        client, f"{client % 2:016x}", weight, {"loss": 0.1 * client, "same": 2.0} if client else {"loss": 1.0}
    )


def make_replies(clients: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(clients)
    return [
        {
            "w": (0.1 * rng.standard_normal((3, 100))).astype(np.float32),
            "steps": np.array(client),
            "odd": np.array([1e30, -1e-40, 0, 1 / 3, client], np.float32) * np.float32(rng.standard_normal()),
            "mask": np.array([True, False, client % 3 > 0]),
        }
        for client in range(clients)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., PartialSum]:
    numbers = itertools.count()

    def write(members: Sequence[SumMember], replies: Sequence[Arrays], base: Arrays) -> PartialSum:
        path = write_partial_sum(tmp_path / f"sum-{next(numbers)}", HEADER, members, replies, base).path
        return PartialSum(BytesArrays(path.read_bytes()))

    return write


@pytest.mark.parametrize("block", [7, 1 << 15])
def test_the_mean_has_the_same_bits_however_replies_are_grouped(
    write: Callable[..., PartialSum], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(partial_sum, "SUM_BLOCK", block)
    monkeypatch.setattr(exact_mean_module, "SUM_BLOCK", block)
    replies = make_replies(9)
    base = {"w": replies[0]["w"] + np.float32(0.01), "odd": np.zeros(2, np.float32)}
    weights = [1.0, 0.3, 40.0, 7.25, 1e-3, 1e6, 3.0, 3.0, 5.5]
    members = [make_member(client, weight) for client, weight in enumerate(weights)]
    found = []
    for groups in ([], [range(9)], [range(3), range(3, 9)], [[8, 1, 4]], [[0], [1], [2, 3]]):
        inside = [client for group in groups for client in group]
        sums = [(write([members[c] for c in group], [replies[c] for c in group], base), base) for group in groups]
        for one, _ in sums:
            one.check(SIZES)
        singles = [(replies[client], weights[client]) for client in range(9) if client not in inside]
        empty = {name: np.empty_like(array) for name, array in replies[0].items()}
        found.append(exact_mean(GroupedReplies(singles, sums, weights), empty))
    for other in found[1:]:
        assert all(other[name].tobytes() == found[0][name].tobytes() for name in other)
    usual = mean({client: Reply(reply, weights[client]) for client, reply in enumerate(replies)})
    assert all(np.allclose(usual[name], found[0][name], rtol=1e-6) for name in usual)


def test_the_members_come_back(write: Callable[..., PartialSum]) -> None:
    members = [make_member(client, 0.1 + client) for client in (3, 0, 7)]
    one = write(members, make_replies(3), {})
    assert one.members == members
    assert one.header == HEADER
    assert sorted(one) == sorted(SIZES)


def test_equal_members_cost_next_to_nothing() -> None:
    many = [SumMember(client, "0" * 16, 12.0, {"loss": 0.5}) for client in range(10_000)]
    assert len(encode_members(many)) < 150
    assert decode_members(encode_members(many)) == many


def test_the_same_sum_has_the_same_bytes(write: Callable[..., PartialSum], tmp_path: Path) -> None:
    members, replies = [make_member(client) for client in range(4)], make_replies(4)
    one, other = (write_partial_sum(tmp_path / name, HEADER, members, replies, {}) for name in "ab")
    assert one.digest == other.digest


@pytest.mark.parametrize("block", [7, 1 << 15])
@pytest.mark.parametrize("groups", [[[0, 3], [1, 2, 4]], [[4], [0]], [[0], [1, 2, 3]]], ids=str)
def test_a_sum_of_sums_has_the_bytes_of_the_sum_of_the_replies(
    groups: list[list[int]], block: int, tmp_path: Path, write: Callable[..., PartialSum],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(partial_sum, "SUM_BLOCK", block)
    replies = make_replies(5)
    base = {name: array + np.asarray(0.01, array.dtype) for name, array in replies[0].items()}
    members = [make_member(client, 0.3 + client) for client in range(5)]
    sums = [write([members[c] for c in group], [replies[c] for c in group], base) for group in groups]
    alone = [client for client in range(5) if all(client not in group for group in groups)]
    path = write_partial_sum(
        tmp_path / "nested", HEADER, [members[c] for c in alone], [replies[c] for c in alone], base, sums
    ).path
    read_all(PartialSum(BytesArrays(path.read_bytes())))
    whole = write_partial_sum(tmp_path / "whole", HEADER, members, replies, base)
    assert path.read_bytes() == whole.path.read_bytes()


def test_sums_that_do_not_fit_together_are_not_added(tmp_path: Path, write: Callable[..., PartialSum]) -> None:
    replies = make_replies(3)
    other = write([make_member(0)], [{"w": replies[0]["w"]}], {})
    unknown = write([make_member(0)], replies[:1], {})
    with pytest.raises(PayloadError, match="of different names"):
        write_partial_sum(tmp_path / "sum", HEADER, [make_member(1)], replies[1:2], {}, [other])
    with pytest.raises(PayloadError, match=r"the size of '\w+' in a partial sum is unknown"):
        write_partial_sum(tmp_path / "sum", HEADER, [], [], {}, [unknown])


def forge(one: PartialSum, tmp_path: Path, **changed: Any) -> PartialSum:
    """Return a partial sum with other arrays."""
    arrays = {name: one.content[name] for name in one.content} | changed
    blob = write_arrays(tmp_path / "forged", {n: a for n, a in arrays.items() if a is not None}, None,
                        {SUM_KEY: HEADER.model_dump_json()})  # fmt: skip
    return PartialSum(BytesArrays(blob.path.read_bytes()))


def read_all(one: PartialSum) -> None:
    one.check_members()
    one.check(SIZES)


def listing(members: Sequence[SumMember]) -> np.ndarray[Any, Any]:
    return np.frombuffer(encode_members(members), np.uint8)


@pytest.mark.parametrize(
    ("added", "listed", "error", "match"),
    [
        ([0, 1, 1], [0, 1], RepeatedMemberError, "adds client 1 twice"),
        ([0, 1, 1], [0, 1, 1], RepeatedMemberError, "lists client 1 twice"),
        ([0, 1], [0, 1, 2], MissingMemberError, "lists client 2, but leaves its reply out"),
        ([0, 1, 2], [0, 1], SumMismatchError, "not that of its 2 members"),
        ([0, 1, 2, 2], [0, 1, 3], SumMismatchError, "not that of its 3 members"),
    ],
)
def test_a_relay_that_adds_a_client_twice_or_leaves_one_out_is_found(
    write: Callable[..., PartialSum], tmp_path: Path, added: list[int], listed: list[int], error: type[Exception],
    match: str,
) -> None:  # fmt: skip
    replies = make_replies(4)
    one = write([make_member(client) for client in added], [replies[client] for client in added], {})
    with pytest.raises(error, match=match):
        forge(one, tmp_path, members=listing([make_member(client) for client in listed])).check_members()


def test_a_weight_that_does_not_add_up_is_found(write: Callable[..., PartialSum], tmp_path: Path) -> None:
    one = write([make_member(client) for client in range(3)], make_replies(3), {})
    wrong = listing([make_member(0), make_member(1), make_member(2, 1.5)])
    with pytest.raises(SumMismatchError, match="other weights"):
        forge(one, tmp_path, members=wrong).check_members()


def test_seals_tell_clients_apart() -> None:
    assert len({make_seal(client).tobytes() for client in range(1000)}) == 1000


@pytest.mark.parametrize(
    "changed",
    [
        {"members": None},
        {"seal": None},
        {"sum:w": None},
        {"sum:extra": np.zeros(4, np.uint8)},
        {"sum:w": np.zeros(3, np.uint8)},
        {"sum:w": np.full(40, 255, np.uint8)},
        {"sum:w": np.zeros(4, np.int32)},
        {"members": np.zeros(4, np.uint8)},
        {"members": listing([make_member(0)])[:-1]},
        {"seal": np.zeros(8, np.uint8)},
    ],
    ids=lambda changed: "-".join(
        f"{name}-{'none' if array is None else array.size}" for name, array in changed.items()
    ),
)
def test_other_containers_are_refused(
    write: Callable[..., PartialSum], tmp_path: Path, changed: dict[str, Any]
) -> None:
    one = write([make_member(client) for client in range(3)], make_replies(3), {})
    wrong = forge(one, tmp_path, **changed)
    with pytest.raises(ProtocolError):
        read_all(wrong)


def test_a_range_of_too_many_clients_is_refused_before_it_takes_memory() -> None:
    message = {"v": 1, "clients": [[0, 10_000]], "tasks": ["0" * 16], "weights": [1.0], "metrics": {}}
    with pytest.raises(PayloadError, match="lists 10001 clients; the limit is 10000"):
        decode_members(deflate(json.dumps(message).encode()))


@pytest.mark.parametrize("name", ["members", "seal", "sum:w"])
def test_what_is_too_large_is_refused_before_it_takes_memory(
    write: Callable[..., PartialSum], tmp_path: Path, name: str
) -> None:
    one = write([make_member(client) for client in range(3)], make_replies(3), {})
    content = np.zeros(1 << 25, np.uint8)
    content[:4] = np.array([content.size - 4], "<u4").view(np.uint8)  # the length of the only block
    forge(one, tmp_path, **{name: content})
    wrong = PartialSum(FileArrays(tmp_path / "forged"))
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError, match=r"the limit is|more bytes than its"):
            read_all(wrong)
        assert tracemalloc.get_traced_memory()[1] < content.size // 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_block_of_the_widest_sums_has_its_bytes(size: int) -> None:
    total = ExactSum(size)
    for value in (np.finfo(np.float64).max, np.finfo(np.float64).smallest_subnormal):
        total.add_products(np.full((1, size), value), np.ones(1))
    assert len(encode_block(total)) <= count_most_bytes(size)


@pytest.mark.parametrize("length", [1, 99, 101])
def test_a_deflated_plane_of_another_length_is_refused(length: int) -> None:
    plane = deflate(bytes(range(1, length + 1)))
    content = struct.pack("<hHBBI", 0, 1, 0, 2, len(plane)) + plane  # no sum is negative; one plane, deflated
    with pytest.raises(PayloadError, match=r"has \d+ bytes instead of 100|has more than 100 bytes"):
        decode_block(content, 100)


@pytest.mark.parametrize(("low", "count"), [(_BEYOND - 1, 2), (_BEYOND, 1), (_LOWEST - 1, 1)])
def test_planes_beyond_those_of_a_sum_are_refused(low: int, count: int) -> None:
    with pytest.raises(PayloadError, match=f"a sum of {count} planes from {low} on is beyond what a sum can have"):
        decode_block(struct.pack("<hH", low, count) + bytes(1 + count), 3)
    decode_block(struct.pack("<hH", _BEYOND - 1, 1) + bytes(2), 3)  # the highest plane


def forged_sum(value: float, tmp_path: Path) -> PartialSum:
    """Return the sum of two replies of a hostile board: one number is ``value``, the other 1."""
    members = [SumMember(client, "0" * 16, 1.0, {}) for client in (0, 1)]
    header = SumHeader(run="run", round=1, exchange=0)
    replies = [{"w": np.array([value])}, {"w": np.array([1.0])}]
    return PartialSum(FileArrays(write_partial_sum(tmp_path / "sum", header, members, replies, {}).path))


@pytest.mark.parametrize("value", [1e80, 2.0**184, -(2.0**165)])
def test_numbers_beyond_those_of_replies_are_refused(value: float, tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="numbers beyond those of weighted replies"):
        forged_sum(value, tmp_path).check({"w": 1})


@pytest.mark.parametrize("value", [FP32_MAX, -2 * FP32_MAX])
def test_the_largest_numbers_of_replies_are_taken(value: float, tmp_path: Path) -> None:
    forged_sum(value, tmp_path).check({"w": 1})


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [("float32", -FP32_MAX, FP32_MAX), ("float16", -65504, 65504), ("int64", -(2.0**63), 2.0**63), ("uint8", 0, 255)],
)
def test_a_forged_sum_leaves_a_finite_mean(dtype: str, least: float, most: float, tmp_path: Path) -> None:
    """Else one board could end the run: a state with infinite numbers is an algorithm's mistake."""
    for value, limit in ((-(2.0**150), least), (2.0**150, most)):
        sums = [(forged_sum(value, tmp_path), dict[str, Any]())]
        (found,) = exact_mean(GroupedReplies([], sums, [1.0, 1.0]), {"w": np.empty(1, dtype)})["w"]
        assert float(found) == pytest.approx(limit)


def test_a_list_of_members_that_inflates_without_end_is_refused() -> None:
    with pytest.raises(PayloadError, match="more than"):
        decode_members(deflate(b" " * (1 << 24)))
