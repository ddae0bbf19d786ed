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
from fedquilt_common.models.activations import check_dropout, make_activation
from fedquilt_common.models.shapes import check_sizes


@dataclass(frozen=True)
class HarsModel:
    """A row of Table 3.4.

    Attributes:
        d1: outputs of the second hidden layer.
        activation: of both hidden layers.
        dropout: after the first hidden layer.
        d2: outputs of the first hidden layer.
        optimiser: of the client that trains this model.
        lr: its learning rate.
        size: thousands of parameters, as printed.
    """

    d1: int
    activation: str
    dropout: float
    d2: int
    optimiser: Literal["sgd", "adam", "rmsprop"]
    lr: float
    size: float


HARS: Final = (
    HarsModel(290, "relu", 0.1, 340, "adam", 1e-3, 291), HarsModel(240, "elu", 0.25, 300, "adam", 1e-4, 242),
    HarsModel(200, "selu", 0.15, 270, "adam", 1e-5, 207), HarsModel(93, "relu", 0.2, 200, "rmsprop", 1e-5, 131),
    HarsModel(99, "tanh", 0.1, 170, "rmsprop", 1e-4, 113), HarsModel(90, "elu", 0.15, 120, "adam", 1e-3, 78),
    HarsModel(20, "relu", 0.25, 70, "rmsprop", 1e-3, 40), HarsModel(7, "selu", 0.1, 30, "adam", 1e-4, 17),
    HarsModel(5, "tanh", 0.15, 10, "sgd", 1e-3, 5.5), HarsModel(5, "tanh", 0.25, 8, "sgd", 1e-5, 4.5),
)  # fmt: skip


def build(
    input_shape: tuple[int, ...],
    classes: int,
    hidden: Sequence[int] = (120, 90),
    activation: str = "relu",
    dropout: float = 0.1,
) -> nn.Module:
    """Build the network: input (n, *input_shape), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: shape of one sample.
        classes: number of classes; 0 for regression.
        hidden: outputs of the hidden layers.
        activation: of ``ACTIVATIONS``.
        dropout: after the first layer, from 0 to below 1.

    Raises:
        ExperimentError: a parameter is out of range.
    """
    check_sizes("hidden", hidden)
    widths = [math.prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for index, (before, after) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Linear(before, after), make_activation(activation)]
        if index == 0:
            layers.append(nn.Dropout(check_dropout(dropout)))
    return nn.Sequential(*layers, nn.Linear(widths[-1], max(classes, 1)))


def hars(input_shape: tuple[int, ...], classes: int, number: int) -> nn.Module:
    """Build one of the FedAKD thesis's ten models for HARS: its number in Table 3.4, from 0 to 9.

    Input (n, *input_shape), output (n, classes).

    Raises:
        ExperimentError: the table has no model of this number.
    """
    row = HARS[check_number(number, len(HARS))]
    return build(input_shape, classes, (row.d2, row.d1), row.activation, row.dropout)


def check_number(number: int, count: int) -> int:
    """Check and return the number of a table's model.

    Raises:
        ExperimentError: it is not a whole number from 0 to below ``count``.
    """
    if type(number) is not int or not 0 <= number < count:
        raise ExperimentError(
            f"model.number = {number!r}: the table's models have the numbers 0 to {count - 1}; choose one of them"
        )
    return number
