"""Run narrow sub-models once before the first round, so that one that does not run is refused there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.errors import FedquiltError, UncuttableModelError
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.tracing.branches import check_branches
from fedquilt_common.tracing.outputs import SAMPLES, example_batch, refuse_exits
from fedquilt_common.tracing.resize import cut_module
from fedquilt_common.tracing.trace import Blueprint

_HALF: Final = 0.5
TRIED_SAMPLES: Final = SAMPLES + 1
"""Differs from the number in the trace, so that a sub-model that accepts only that number is refused."""


@refuse_exits()
def check_cut(build: Callable[[], nn.Module], blueprint: Blueprint, x: NDArray[Any], part: Slice | None = None) -> None:
    """Run a sub-model on three samples, in training and in evaluation, and compare its steps with the whole model's.

    Args:
        build: makes the model.
        blueprint: how it is cut.
        x: samples of shape (n, *input_shape); their numbers do not matter.
        part: the sub-model; None: the first half of each group's channels.

    Raises:
        UncuttableModelError: it does not run, as when ``forward`` checks for the whole model's sizes, or takes another
            branch.
        ExperimentError: its forward calls ``sys.exit``.
    """
    part = part or prefix(blueprint.anatomy, _HALF, "floor")
    entered: list[str] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            module = cut_module(build, blueprint, part)
            _note_entered(module, entered)
            for training in (True, False):
                module.train(training)(example_batch(x, TRIED_SAMPLES))
        except FedquiltError:
            raise
        except Exception as error:  # a user's module can raise anything
            kept, whole = (sum(getattr(group, field) for group in part.kept) for field in ("count", "size"))
            place = f" in or after '{entered[-1]}'" if entered else ""
            raise UncuttableModelError(
                f"the model cannot be cut: its sub-model with {kept} of {whole} channels does not run: "
                f"{type(error).__name__}{place}: {error}; forward must not contain sizes of the whole model, other "
                "than in views; take them from its tensors' shapes, or choose an algorithm that sends whole models"
            ) from error
    check_branches(build, blueprint, part)


def _note_entered(module: nn.Module, entered: list[str]) -> None:
    """Note the name of each layer that the forward pass enters."""
    for name, part in module.named_modules():
        if name:
            part.register_forward_pre_hook(lambda *_, name=name: entered.append(name))
