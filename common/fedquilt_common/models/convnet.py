"""FedDyn's CIFAR-10 network (Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021).

Two 5 x 5 convolutions of 64 channels, each with ReLU and 2 x 2 max pooling, then linear layers of 384, 192
and ``classes`` outputs: 797,962 parameters for 3 x 32 x 32 and ten classes, as in the code published with
the paper.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fedquilt_common.models.exits import with_exits
from fedquilt_common.models.shapes import check_image, scale_channels

CHANNELS = 64
_SMALLEST = 16


def build(input_shape: tuple[int, ...], classes: int, width: float = 1.0, exits: Sequence[int] = ()) -> nn.Module:
    """Build the network: input (n, channels, height, width), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, height, width) of an image of at least 16 x 16.
        classes: number of classes; 0 for regression.
        width: factor of all hidden channels.
        exits: stages 0 to 2 (two convolutions, the first linear layer) that get an early exit.

    Raises:
        ExperimentError: the samples are no such images, or a parameter is out of range.
    """
    channels, height, across = check_image("convnet", input_shape, _SMALLEST, "mlp")
    # Pooling before the activation is faster and gives the same bits, because ReLU keeps the order of values.
    hidden, fc1, fc2 = (scale_channels(size, width) for size in (CHANNELS, 384, 192))
    stages: list[dict[str, nn.Module]] = [
        {"conv1": nn.Conv2d(channels, hidden, 5), "pool1": nn.MaxPool2d(2), "relu1": nn.ReLU()},
        {"conv2": nn.Conv2d(hidden, hidden, 5), "pool2": nn.MaxPool2d(2), "relu2": nn.ReLU()},
        {"flatten": nn.Flatten(), "fc1": nn.Linear(hidden * _pooled_side(height) * _pooled_side(across), fc1),
         "relu3": nn.ReLU()},
        {"fc2": nn.Linear(fc1, fc2), "relu4": nn.ReLU()},
    ]  # fmt: skip
    head: dict[str, nn.Module] = {"fc3": nn.Linear(fc2, max(classes, 1))}
    if exits:
        parts = [nn.Sequential(OrderedDict(stage)) for stage in stages]
        ends = [(hidden, True), (hidden, True), (fc1, False), (fc2, False)]
        return with_exits("convnet", parts, ends, nn.Sequential(OrderedDict(head)), exits, classes)
    return nn.Sequential(OrderedDict(layer for stage in [*stages, head] for layer in stage.items()))


def _pooled_side(side: int) -> int:
    """Side of an image after two unpadded 5 x 5 convolutions, each pooled by 2."""
    return ((side - 4) // 2 - 4) // 2
