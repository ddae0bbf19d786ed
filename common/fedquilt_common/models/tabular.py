"""The FedAKD thesis's template for tables of features (figures 3.3, right, and 4.4, right): two hidden layers with
dropout between them.

``hars`` are the ten models of its Table 3.4; the sizes printed there, 4.5k to 291k parameters for 561 features and six
classes, come out when D2 is the first layer and D1 the second, as in its notebook. The table gives one activation,
which both layers have here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from torch import nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.activations import activation, check_dropout
from fedquilt_common.models.shapes import check_sizes


@dataclass(frozen=True)
class _Row:
    """A line of Table 3.4; ``size`` in thousands of parameters, ``optimiser`` and ``lr`` are the client's own."""

    d1: int
    activation: str
    dropout: float
    d2: int
    optimiser: Literal["sgd", "adam", "rmsprop"]
    lr: float
    size: float


HARS: Final = (
    _Row(290, "relu", 0.1, 340, "adam", 1e-3, 291), _Row(240, "elu", 0.25, 300, "adam", 1e-4, 242),
    _Row(200, "selu", 0.15, 270, "adam", 1e-5, 207), _Row(93, "relu", 0.2, 200, "rmsprop", 1e-5, 131),
    _Row(99, "tanh", 0.1, 170, "rmsprop", 1e-4, 113), _Row(90, "elu", 0.15, 120, "adam", 1e-3, 78),
    _Row(20, "relu", 0.25, 70, "rmsprop", 1e-3, 40), _Row(7, "selu", 0.1, 30, "adam", 1e-4, 17),
    _Row(5, "tanh", 0.15, 10, "sgd", 1e-3, 5.5), _Row(5, "tanh", 0.25, 8, "sgd", 1e-5, 4.5),
)  # fmt: skip


def build(
    input_shape: tuple[int, ...],
    classes: int,
    hidden: Sequence[int] = (120, 90),
    activation: str = "relu",
    dropout: float = 0.1,
) -> nn.Module:
    """Input (n, *input_shape), output (n, classes), or (n, 1) for regression. ``dropout`` follows the first layer.

    Raises ExperimentError.
    """
    check_sizes("hidden", hidden)
    widths = [math.prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for index, (before, after) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Linear(before, after), _activation(activation)]
        if index == 0:
            layers.append(nn.Dropout(check_dropout(dropout)))
    return nn.Sequential(*layers, nn.Linear(widths[-1], max(classes, 1)))


_activation = activation


def hars(input_shape: tuple[int, ...], classes: int, number: int) -> nn.Module:
    """Build one of the FedAKD thesis's ten models for HARS: model ``number``, from 0 to 9, of Table 3.4.

    Raises ExperimentError.
    """
    row = HARS[check_number(number, len(HARS))]
    return build(input_shape, classes, (row.d2, row.d1), row.activation, row.dropout)


def check_number(number: int, count: int) -> int:
    """Raises ExperimentError unless there is a model of this number."""
    if type(number) is not int or not 0 <= number < count:
        raise ExperimentError(f"model.number = {number!r}: the table's models have the numbers 0 to {count - 1}")
    return number
