"""Seeding torch, numpy and Python: torch's numbers are those of ``torch.manual_seed``, with or without CUDA."""

from __future__ import annotations

import random
import traceback
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt_common.tracing.generators import read_generators, seed_torch, use_seed


@pytest.mark.parametrize("cuda", [False, True])
def test_the_numbers_are_those_of_torchs_own_seed(monkeypatch: pytest.MonkeyPatch, cuda: bool) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: cuda)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        wanted = torch.rand(4)
        seed_torch(5)
        assert torch.equal(torch.rand(4), wanted)


def test_no_stack_is_formatted_for_devices_that_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    formatted = list[int]()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(traceback, "format_stack", lambda *_: formatted.append(1))
    with torch.random.fork_rng(devices=[]):
        seed_torch(5)
    assert not formatted


def test_the_generator_of_cuda_is_seeded_where_torch_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = list[int]()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    seed_torch(5)
    assert seeds == [5]


def test_a_seed_starts_all_three_generators_and_leaves_them_as_they_were() -> None:
    def draw(seed: int) -> tuple[Any, ...]:
        with use_seed(seed):
            return random.random(), np.random.rand(), float(torch.rand(1))

    before = read_generators()
    first = draw((1 << 63) - 1)
    assert read_generators() == before
    assert draw((1 << 63) - 1) == first
    assert all(one != other for one, other in zip(first, draw(3), strict=True))
