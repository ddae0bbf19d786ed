"""A multilayer perceptron.

With ``hidden`` [100] on samples of 3 x 32 x 32 it is the 3072-100-10 network of the FedReb thesis's test bed
(308,310 parameters, 1,233,240 bytes in fp32).
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.activations import check_dropout
from fedquilt_common.models.exits import with_exits


def build(
    input_shape: tuple[int, ...],
    classes: int,
    hidden: Sequence[int] = (100,),
    exits: Sequence[int] = (),
    dropout: float = 0.0,
) -> nn.Module:
    """Build the network: input (n, *input_shape), output (n, classes), or (n, 1) for regression; ReLU between layers.

    Args:
        input_shape: shape of one sample.
        classes: number of classes; 0 for regression.
        hidden: outputs of the hidden layers; an empty list makes a linear model.
        exits: hidden layers, from 0 to the last but one, that get an early exit.
        dropout: after each hidden layer, from 0 to below 1.

    Raises:
        ExperimentError: ``hidden`` is not a list of positive whole numbers, or another parameter is out of range.
    """
    _check_hidden(hidden)
    rate = check_dropout(dropout)
    widths = [math.prod(input_shape), *hidden, max(classes, 1)]
    if exits:
        return _with_exits(widths, exits, classes, rate)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for index in range(1, len(widths)):
        if index > 1:
            layers[f"relu{index - 1}"] = nn.ReLU()
        if index > 1 and rate:
            layers[f"dropout{index - 1}"] = nn.Dropout(rate)
        layers[f"fc{index}"] = nn.Linear(widths[index - 1], widths[index])
    return nn.Sequential(layers)


def _with_exits(widths: Sequence[int], exits: Sequence[int], classes: int, dropout: float) -> nn.Module:
    regular = [nn.Dropout(dropout)] if dropout else []
    stages = [
        nn.Sequential(nn.Flatten(), nn.Linear(before, after), nn.ReLU(), *regular)
        for before, after in itertools.pairwise(widths[:-1])
    ]
    ends = [(width, False) for width in widths[1:-1]]
    return with_exits("mlp", stages, ends, nn.Linear(widths[-2], widths[-1]), exits, classes)


def _check_hidden(hidden: object) -> None:
    listed = isinstance(hidden, Sequence) and not isinstance(hidden, str)
    if not listed or not all(type(width) is int and width > 0 for width in hidden):  # type: ignore[attr-defined]
        raise ExperimentError(f"model.hidden = {hidden!r}: must be a list of positive whole numbers, such as [100]")
