"""Activations by their names in tables 3.3 and 3.4 of the FedAKD thesis."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedquilt_common.errors import ExperimentError

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "elu": nn.ELU, "selu": nn.SELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid,
}  # fmt: skip


def make_activation(name: str) -> nn.Module:
    """Make the activation of this name.

    Raises:
        ExperimentError: ``ACTIVATIONS`` has no such name.
    """
    if name not in ACTIVATIONS:
        raise ExperimentError(f"model.activation = {name!r}: must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def check_dropout(dropout: float) -> float:
    """Check and return a model's dropout.

    Raises:
        ExperimentError: it is not a number from 0 to below 1.
    """
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ExperimentError(f"model.dropout = {dropout!r}: must be a number from 0 to below 1")
    return float(dropout)
