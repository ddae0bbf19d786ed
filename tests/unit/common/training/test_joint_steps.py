"""Parameters change together as long as they take one MiB at most."""

from __future__ import annotations

import pytest
import torch

from fedquilt_common.training.optimisers import joint_steps

MIB = 1 << 18
"""Numbers of fp32 in a MiB."""


@pytest.mark.parametrize(
    ("sizes", "together"),
    [
        ([], []),
        ([1, 2, 3], [[0, 1, 2]]),
        ([MIB, 1], [[0], [1]]),
        ([1, 3 * MIB, 1, 1], [[0], [1], [2, 3]]),
        ([MIB // 2, MIB // 2, MIB // 2], [[0, 1], [2]]),
    ],
)
def test_a_joint_step_takes_a_mebibyte(sizes: list[int], together: list[list[int]]) -> None:
    tensors = [torch.empty(size) for size in sizes]
    steps = list(joint_steps([(index, one, one) for index, one in enumerate(tensors)]))
    assert [list(step.indices) for step in steps] == together
    assert [one for step in steps for one in step.parameters] == tensors or not tensors
