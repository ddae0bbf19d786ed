"""FedDyn's CIFAR-10 network (Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021).

Two 5 x 5 convolutions of 64 channels, each with ReLU and 2 x 2 max pooling, then linear layers of 384, 192
and ``classes`` outputs: 797,962 parameters for 3 x 32 x 32 and ten classes, as in the code published with
the paper.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedquilt_common.errors import ExperimentError

CHANNELS = 64
_SMALLEST = 16


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Input (n, channels, height, width), output (n, classes), or (n, 1) for regression (``classes`` 0).

    Raises ExperimentError for samples that are no images of at least 16 x 16.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < _SMALLEST:
        raise ExperimentError(
            f"model.name = convnet: samples of shape {tuple(input_shape)} are no images (channels, height, "
            f"width) of at least {_SMALLEST} x {_SMALLEST}; choose another model, such as mlp"
        )
    channels, height, width = input_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, CHANNELS, kernel_size=5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(CHANNELS, CHANNELS, kernel_size=5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(CHANNELS * _pooled(height) * _pooled(width), 384),
            relu3=nn.ReLU(),
            fc2=nn.Linear(384, 192),
            relu4=nn.ReLU(),
            fc3=nn.Linear(192, max(classes, 1)),
        )
    )


def _pooled(side: int) -> int:
    """What two unpadded 5 x 5 convolutions, each pooled by 2, leave of a side."""
    return ((side - 4) // 2 - 4) // 2
