"""A model of your own: a multilayer perceptron whose blocks have a shortcut.

Run it with any experiment, here in the folder that contains ``examples/``::

    PYTHONPATH=examples fedquilt simulate deploy/experiments/digits-fedavg.yaml --out runs/own-model \\
        --set model.name=own_model:build --set model.blocks=2
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import Tensor, nn

import fedquilt as fq


class Block(nn.Module):
    """Adds a hidden layer's output to its input, float32 of shape (n, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.out(self.hidden(x).relu())
        return out


def build(input_shape: tuple[int, ...], classes: int, width: int = 64, blocks: int = 1) -> nn.Module:
    """Build the model; fedquilt calls this on the coordinator and on every board.

    Args:
        input_shape: shape of one sample, without the batch.
        classes: number of classes; 0 for regression.
        width: features of each block, a key of the experiment's ``model`` section.
        blocks: number of blocks, another key.

    Returns:
        A module from float32 (n, *input_shape) to logits of shape (n, classes), or (n, 1) for regression. The names
        of its layers are the names of the arrays that travel.

    Raises:
        ExperimentError: a parameter is not a positive whole number.
    """
    for key, value in (("width", width), ("blocks", blocks)):
        if type(value) is not int or value < 1:
            raise fq.ExperimentError(f"model.{key} = {value!r}: must be a whole number of at least 1")
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten(), "in": nn.Linear(math.prod(input_shape), width)}
    layers |= {f"block{number}": Block(width) for number in range(1, blocks + 1)}
    layers["out"] = nn.Linear(width, max(classes, 1))
    return nn.Sequential(OrderedDict(layers))
