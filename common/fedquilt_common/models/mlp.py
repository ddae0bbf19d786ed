"""A multilayer perceptron.

With ``hidden`` [100] on samples of 3 x 32 x 32 it is the 3072-100-10 network of the FedReb thesis's test bed
(308,310 parameters, 1,233,240 bytes in fp32).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fedquilt_common.errors import ExperimentError


def build(input_shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (100,)) -> nn.Module:
    """Input (n, *input_shape), output (n, classes), or (n, 1) for regression (``classes`` 0); ReLU between
    layers.

    Raises ExperimentError unless ``hidden`` is a list of positive whole numbers; an empty one is a linear
    model.
    """
    _check(hidden)
    widths = [math.prod(input_shape), *hidden, max(classes, 1)]
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for index in range(1, len(widths)):
        if index > 1:
            layers[f"relu{index - 1}"] = nn.ReLU()
        layers[f"fc{index}"] = nn.Linear(widths[index - 1], widths[index])
    return nn.Sequential(layers)


def _check(hidden: object) -> None:
    listed = isinstance(hidden, Sequence) and not isinstance(hidden, str)
    if not listed or not all(type(width) is int and width > 0 for width in hidden):  # type: ignore[attr-defined]
        raise ExperimentError(f"model.hidden = {hidden!r}: must be a list of positive whole numbers, such as [100]")
