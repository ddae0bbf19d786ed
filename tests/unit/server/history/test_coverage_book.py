"""The coverage counts what was averaged, channel by channel and board by board."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedquilt_common.algorithms.federated_dropout import FederatedDropout
from fedquilt_common.algorithms.fedrolex import FedRolex
from fedquilt_common.algorithms.heterofl import HeteroFL
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
    unknown = add_round(found.model_copy(update={"replies": {}}), {0: part(0, 1)}, {})  # a damaged file
    assert unknown.layers[0].boards == found.layers[0].boards


WIDTHS = (1.0, 0.5, 0.25)
SIZES = (16, 8)


def count_updates(algorithm: Any, rounds: int) -> list[list[int]]:
    """Return how often each channel of each group was trained, by one client of each width in each round."""
    groups = tuple(Group(f"layer-{number}", size, number) for number, size in enumerate(SIZES))
    arrays = {f"layer-{number}.weight": ArrayAnatomy((size, 3), "float32", ((Segment(number, 1),), FREE))
              for number, size in enumerate(SIZES)}  # fmt: skip
    anatomy, coverage = Anatomy(groups, arrays), None
    for number in range(1, rounds + 1):
        ctx: Any = SimpleNamespace(anatomy=anatomy, round=number, rng=np.random.default_rng(number))
        parts = {client: algorithm.part(ctx, width) for client, width in enumerate(WIDTHS)}
        coverage = add_round(coverage, parts, {})
    assert coverage is not None
    return [list(layer.counts) for layer in coverage.layers]


def test_after_k_rounds_fedrolex_has_updated_every_channel_equally_often() -> None:
    """The coverage lemma of the FedRolex thesis: a window of n of K channels trains each n times in K rounds."""
    for size, counts in zip(SIZES, count_updates(FedRolex(), max(SIZES)), strict=True):
        assert counts == [sum(int(width * size) for width in WIDTHS) * max(SIZES) // size] * size


@pytest.mark.parametrize("rounds", [1, 5, 16])
def test_heterofl_updates_the_first_channels_in_every_round_and_the_last_only_on_the_widest(rounds: int) -> None:
    for size, counts in zip(SIZES, count_updates(HeteroFL(), rounds), strict=True):
        assert counts == sorted(counts, reverse=True)
        assert (counts[0], counts[-1]) == (3 * rounds, rounds)
        assert sum(counts) == rounds * sum(int(width * size) for width in WIDTHS)


def test_federated_dropout_updates_all_channels_equally_often_on_average_only() -> None:
    for size, counts in zip(SIZES, count_updates(FederatedDropout(), 400), strict=True):
        expected = 400 * sum(WIDTHS)
        assert len(set(counts)) > 1
        assert max(abs(count - expected) for count in counts) < 0.15 * expected
        assert sum(counts) == 400 * sum(int(width * size) for width in WIDTHS)
