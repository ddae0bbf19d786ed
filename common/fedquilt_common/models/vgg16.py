"""VGG16 with batch norm, as AdaptiveFL splits it (Jia et al., "AdaptiveFL", DAC 2024, Table 1).

Simonyan and Zisserman's configuration D: 13 convolutions of 3 x 3 with bias, each with batch norm and ReLU, five
max poolings, then linear layers 512 -> 4096 -> 4096 -> classes with ReLU and dropout: 33,646,666 parameters for
3 x 32 x 32 and ten classes. If an image is larger than 1 x 1 after the five poolings, its places are averaged.
For FEMNIST (1 x 28 x 28, 62 classes) the published code has linear layers of 256 (``head``): 14,935,038 parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from fedquilt_common.models.exits import with_exits
from fedquilt_common.models.norms import NormName, choose_norm
from fedquilt_common.models.shapes import check_image, check_size, scale_channels

CHANNELS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
POOLED_AFTER = (1, 3, 6, 9, 12)
_SMALLEST = 16


class VGG16(nn.Sequential):
    """The layers in order, and where AdaptiveFL begins to cut them (Table 1)."""

    start_layers: ClassVar[tuple[int, ...]] = (8, 6, 4)


def build(
    input_shape: tuple[int, ...],
    classes: int,
    width: float = 1.0,
    head: int = 4096,
    dropout: float = 0.5,
    exits: Sequence[int] = (),
    norm: NormName = "batch",
) -> nn.Module:
    """Build the network: input (n, channels, height, width), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, height, width) of an image of at least 16 x 16.
        classes: number of classes; 0 for regression.
        width: factor of ``head`` and of all channels.
        head: outputs of each of the two hidden linear layers.
        dropout: after each hidden linear layer.
        exits: stages 0 to 3, each of which ends in a pooling, that get an early exit.
        norm: after each convolution: ``batch``, ``static`` (HeteroFL's, for sub-models) or ``group``, which can be
            trained with privacy.

    Raises:
        ExperimentError: the samples are no such images, or a parameter is out of range.
    """
    previous, height, across = check_image("vgg16", input_shape, _SMALLEST, "mlp")
    check_size("head", head)
    make_norm = choose_norm(norm)
    sizes = [scale_channels(size, width) for size in CHANNELS]
    stages: list[OrderedDict[str, nn.Module]] = [OrderedDict()]
    for index, size in enumerate(sizes):
        stages[-1][f"conv{index}"] = nn.Conv2d(previous, size, 3, padding=1)
        stages[-1][f"norm{index}"] = make_norm(size)
        stages[-1][f"relu{index}"] = nn.ReLU()
        previous = size
        if index in POOLED_AFTER:
            stages[-1][f"pool{index}"] = nn.MaxPool2d(2, ceil_mode=min(height, across) < 32)
            stages.append(OrderedDict())
    end = _head(previous, scale_channels(head, width), classes, dropout)
    if not exits:
        merged = OrderedDict(pair for stage in stages for pair in stage.items())
        return VGG16(OrderedDict([*merged.items(), *end.items()]))
    ends = [(sizes[index], True) for index in POOLED_AFTER]
    return with_exits("vgg16", [nn.Sequential(s) for s in stages[:-1]], ends, nn.Sequential(end), exits, classes)


def _head(features: int, hidden: int, classes: int, dropout: float) -> OrderedDict[str, nn.Module]:
    return OrderedDict(
        average=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc0=nn.Linear(features, hidden),
        relu_fc0=nn.ReLU(),
        dropout0=nn.Dropout(dropout),
        fc1=nn.Linear(hidden, hidden),
        relu_fc1=nn.ReLU(),
        dropout1=nn.Dropout(dropout),
        fc2=nn.Linear(hidden, max(classes, 1)),
    )
