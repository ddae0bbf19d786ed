"""A user's ``exit()`` in forward is an error that names its place, also where it is called only in tracing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.tracing.dry_run import check_cut
from fedquilt_common.tracing.heads import find_heads
from fedquilt_common.tracing.outputs import check_outputs
from fedquilt_common.tracing.trace import blueprint_for

SAMPLES = np.zeros((2, 4), np.float32)


class Leaving(nn.Module):
    """Leaves the program in a forward pass for which ``when`` is true."""

    def __init__(self, when: Callable[[Any], bool]) -> None:
        super().__init__()
        self.base, self.head, self.when = nn.Linear(4, 6), nn.Linear(6, 3), when

    def forward(self, x: Tensor) -> Any:
        if self.when(x):
            sys.exit(3)
        return self.head(self.base(x))


def make(when: Callable[[Any], bool]) -> nn.Module:
    return nn.Sequential(nn.Dropout(), Leaving(when))


def check_a_cut() -> None:
    """Run a sub-model whose forward leaves the program."""
    leaving = [False]

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Leaving(lambda x: leaving[0]))

    blueprint = blueprint_for(build, SAMPLES)
    leaving[0] = True
    check_cut(build, blueprint, SAMPLES)


@pytest.mark.parametrize(
    "use",
    [
        lambda: check_outputs(lambda: make(lambda x: True), SAMPLES, "model"),
        lambda: blueprint_for(lambda: make(lambda x: isinstance(x, fx.Proxy)), SAMPLES),
        check_a_cut,
        lambda: find_heads(make(lambda x: isinstance(x, fx.Proxy)), torch.zeros(2, 4)),
        lambda: find_heads(make(lambda x: True), torch.zeros(2, 4)),
    ],
)
def test_the_error_names_file_and_line(use: Callable[[], object]) -> None:
    line = Leaving.forward.__code__.co_firstlineno + 2
    with pytest.raises(ExperimentError) as error:
        use()
    assert f"forward called sys.exit(3) (test_exits.py line {line}); remove that call" in str(error.value)
