"""Seeds are part of the protocol: pinned, because a board and a coordinator must derive the same ones."""

from __future__ import annotations

import itertools

import pytest

from fedquilt_common.seeds import derive_seed

PINNED: dict[tuple[object, ...], int] = {
    (): 8_203_414_616_412_130_826,
    (7,): 4_359_823_973_405_836_615,
    (7, "model"): 8_240_833_555_228_945_663,
    (7, 3, 12): 1_130_136_756_688_627_304,
    (0, "round", 1): 1_261_196_899_884_215_864,
    ("Z\u00fcrich", 2): 929_036_891_887_687_349,
}


@pytest.mark.parametrize("parts", PINNED, ids=str)
def test_pinned(parts: tuple[object, ...]) -> None:
    assert derive_seed(*parts) == PINNED[parts]


def test_every_part_and_its_place_count() -> None:
    asked = [(), (7,), (8,), (7, 1), (1, 7), (7, 1, 2), (7, "a"), (71,), (7, 12), (71, 2), (7, 1, "a")]
    for one, other in itertools.combinations(asked, 2):
        assert derive_seed(*one) != derive_seed(*other), (one, other)


def test_seeds_suit_every_generator() -> None:
    seeds = [derive_seed("range", i) for i in range(2000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == 2000
    assert max(seeds) > 2**62  # all bits are used
    assert sum(seed & 1 for seed in seeds) == pytest.approx(1000, abs=150)
