"""Seeding torch: the numbers of ``torch.manual_seed``, with or without CUDA."""

from __future__ import annotations

import traceback

import pytest
import torch

from fedquilt_common.tracing.generators import seed_torch


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
