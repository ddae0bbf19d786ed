"""The FedAKD thesis's template for images (figure 4.4, middle): convolutions with pooling, dropout, one hidden layer.

The thesis gives the kinds of layers but no widths; ours are of the order of its other templates.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedquilt_common.models.activations import check_dropout, make_activation
from fedquilt_common.models.shapes import check_image, check_size, check_sizes


def build(
    input_shape: tuple[int, ...],
    classes: int,
    filters: Sequence[int] = (16, 32),
    hidden: int = 64,
    activation: str = "relu",
    dropout: float = 0.1,
) -> nn.Module:
    """Build the network: input (n, channels, height, width), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, height, width) of an image, at least 2 ** (number of convolutions) a side.
        classes: number of classes; 0 for regression.
        filters: channels of each convolution.
        hidden: outputs of the hidden linear layer.
        activation: of ``ACTIVATIONS``.
        dropout: before the hidden layer, from 0 to below 1.

    Raises:
        ExperimentError: the samples are no such images, or a parameter is out of range.
    """
    check_sizes("filters", filters)
    check_size("hidden", hidden)
    channels, height, width = check_image("image-cnn", input_shape, 2 ** len(filters), "tabular")
    layers: list[nn.Module] = []
    for count in filters:
        layers += [nn.Conv2d(channels, count, 3, padding=1), make_activation(activation)]
        layers.append(nn.MaxPool2d(2))
        channels, height, width = count, height // 2, width // 2
    head = [nn.Flatten(), nn.Dropout(check_dropout(dropout)), nn.Linear(channels * height * width, hidden)]
    return nn.Sequential(*layers, *head, make_activation(activation), nn.Linear(hidden, max(classes, 1)))
