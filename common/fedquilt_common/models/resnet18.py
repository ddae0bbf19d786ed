"""ResNet18 for small images (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1).

It has a 3 x 3 first convolution and no first pooling, as is usual for CIFAR: 11,173,962 parameters for 3 x 32 x 32 and
ten classes. AdaptiveFL's published code has a wider first stage, ``hidden`` [96, 128, 256, 512]: 11,378,186 parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.exits import with_exits
from fedquilt_common.models.shapes import check_image, check_sizes, scale_channels

HIDDEN = (64, 128, 256, 512)
_STEM = 64
_SMALLEST = 8


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut; the shortcut is a convolution if sizes change."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.relu2 = nn.ReLU()
        same = stride == 1 and channels == out
        self.shortcut = nn.Sequential() if same else nn.Sequential(
            OrderedDict(conv=nn.Conv2d(channels, out, 1, stride, bias=False), norm=nn.BatchNorm2d(out)))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (n, channels, height, width) to (n, out, height / stride, width / stride)."""
        inner = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu2(inner + self.shortcut(x))
        return out


def build(
    input_shape: tuple[int, ...],
    classes: int,
    width: float = 1.0,
    hidden: Sequence[int] = HIDDEN,
    exits: Sequence[int] = (),
) -> nn.Module:
    """Build the network: input (n, channels, height, width), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, height, width) of an image of at least 8 x 8.
        classes: number of classes; 0 for regression.
        width: factor of ``hidden`` and of the first convolution's 64 channels.
        hidden: channels of the four stages.
        exits: stages 0 to 2 that get an early exit.

    Raises:
        ExperimentError: the samples are no such images, or a parameter is out of range.
    """
    channels, _, _ = check_image("resnet18", input_shape, _SMALLEST, "mlp")
    check_sizes("hidden", hidden)
    if len(hidden) != len(HIDDEN):
        raise ExperimentError(f"model.hidden = {list(hidden)}: ResNet18 has {len(HIDDEN)} stages; give as many numbers")
    first, *sizes = (scale_channels(size, width) for size in (_STEM, *hidden))
    stem = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(channels, first, 3, 1, 1, bias=False), norm=nn.BatchNorm2d(first), relu=nn.ReLU()
    )
    before = [first, *sizes]
    stages = [_stage(before[k], size, 1 if k == 0 else 2) for k, size in enumerate(sizes)]
    head = OrderedDict[str, nn.Module](
        pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(sizes[-1], max(classes, 1))
    )
    if exits:
        opening = nn.Sequential(OrderedDict([*stem.items(), ("layer1", stages[0])]))
        ends = [(size, True) for size in sizes]
        return with_exits("resnet18", [opening, *stages[1:]], ends, nn.Sequential(head), exits, classes)
    layers = [(f"layer{k + 1}", stage) for k, stage in enumerate(stages)]
    return nn.Sequential(OrderedDict([*stem.items(), *layers, *head.items()]))


def _stage(channels: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(channels, out, stride), BasicBlock(out, out, 1))
