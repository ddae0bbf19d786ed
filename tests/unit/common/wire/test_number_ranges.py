"""Lists of numbers that become short on the wire."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.number_ranges import count_in_ranges, pack_numbers, unpack_numbers

runs = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 40)), max_size=20)


@given(runs)
def test_numbers_come_back_in_their_order(parts: list[tuple[int, int]]) -> None:
    numbers = [number for first, count in parts for number in range(first, first + count)]
    assert unpack_numbers(json.loads(json.dumps(pack_numbers(numbers))), len(numbers)) == numbers


def test_a_long_run_takes_a_few_characters_and_a_short_one_stays() -> None:
    assert pack_numbers(range(400_000)) == [[0, 399_999]]
    assert pack_numbers([5, 1, 2, 3, *range(100, 200), 7]) == [5, 1, 2, 3, [100, 199], 7]
    assert unpack_numbers([5, 1, 2], 3) == [5, 1, 2]


@pytest.mark.parametrize(
    "packed", [[[0, 10**9]], [0, 1, 2, 3], [[3, 1]], [[1]], [[1, 2, 3]], [[-2, -1]], ["1"], [True], [[0, None]]]
)
def test_what_is_no_list_of_few_numbers_is_refused(packed: list[object]) -> None:
    with pytest.raises(ValueError, match=r"more than 3 numbers|neither a number nor a range"):
        unpack_numbers(packed, 3)


def test_the_numbers_of_the_ranges_in_a_text_are_counted_without_reading_it() -> None:
    assert count_in_ranges(b'{"clients": [7, [0, 399999],[ 10 ,19 ], [3,1], [-5,5], [1,2,3]], "boot": 1') == 400_010
    assert count_in_ranges(b"[0,999999999999]") == count_in_ranges(b"[999999,1000001]") == 0  # cheap to refuse


def test_a_board_announces_all_clients_of_stack_overflow_in_one_packet() -> None:
    """Mosquitto refuses packets above 2,000,000 bytes, other brokers above 128 KiB."""
    presence = AgentPresence(agent="pi-0", online=True, boot=1, clients=list(range(342_477)))
    encoded = presence.encode()
    assert len(encoded) < 1000
    assert AgentPresence.model_validate_json(encoded) == presence


def test_a_presence_with_too_many_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 400000 numbers"):
        AgentPresence.model_validate_json('{"v":1,"agent":"a","online":true,"boot":1,"clients":[[0,999999]]}')
    with pytest.raises(ValueError, match="less than 1000000"):
        AgentPresence.model_validate_json('{"v":1,"agent":"a","online":true,"boot":1,"clients":[[999999,1000001]]}')
