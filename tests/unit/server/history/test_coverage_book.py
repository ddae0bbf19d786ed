"""The coverage counts what was averaged, channel by channel and board by board."""

from __future__ import annotations

from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy, Group, IndexSet, Segment, Slice
from fedquilt_server.history.coverage_book import add_round
from fedquilt_server.status.coverage import Coverage

FREE = (Segment(None, 3),)
ANATOMY = Anatomy(
    (Group("first", 4, 0), Group("second", 2, 1)),
    {
        "first.weight": ArrayAnatomy((4, 3), "float32", ((Segment(0, 1),), FREE)),
        "second.weight": ArrayAnatomy((2, 4), "float32", ((Segment(1, 1),), (Segment(0, 1),))),
    },
)


def part(start: int, count: int, *, absent: frozenset[str] = frozenset()) -> Slice:
    return Slice(ANATOMY, (IndexSet.window(4, start, count), IndexSet.full(2)), absent)


WHOLE = part(0, 4)


def test_a_window_that_rolls_is_seen_to_roll() -> None:
    hosts = {0: "pi", 1: "jetson"}
    once = add_round(None, {0: part(3, 2), 1: WHOLE}, hosts)
    twice = add_round(once, {0: part(0, 2), 1: WHOLE}, hosts)
    first = twice.layers[0]
    assert (twice.rounds, twice.replies) == (2, {"pi": 2, "jetson": 2})
    assert once.layers[0].latest == [2, 1, 1, 2]
    assert (first.name, first.counts, first.latest) == ("first", [4, 3, 2, 3], [2, 2, 1, 1])
    assert first.boards == {"pi": 0.5, "jetson": 1.0}


def test_a_layer_that_a_sub_model_leaves_out_is_not_trained() -> None:
    found = add_round(None, {0: part(0, 4, absent=frozenset({"second.weight"})), 1: part(0, 4)}, {0: "pi", 1: "pi"})
    assert [layer.counts for layer in found.layers] == [[2, 2, 2, 2], [1, 1]]
    assert [layer.boards["pi"] for layer in found.layers] == [1.0, 0.5]


def test_a_file_of_another_model_is_dropped() -> None:
    found = add_round(Coverage(rounds=7, layers=[]), {0: part(0, 1)}, {})
    assert (found.rounds, found.replies) == (1, {"": 1})
