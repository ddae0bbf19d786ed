"""ResNet18 for small images (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1).

It has a 3 x 3 first convolution and no first pooling, as is usual for CIFAR: 11,173,962 parameters for 3 x 32 x 32 and
ten classes. AdaptiveFL's published code has a wider first stage, ``hidden`` [96, 128, 256, 512]: 11,378,186 parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.exits import with_exits
from fedquilt_common.models.norms import Norm, NormName, choose_norm
from fedquilt_common.models.shapes import check_image, check_sizes, scale_channels

HIDDEN = (64, 128, 256, 512)
_STEM = 64
_SMALLEST = 8


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut; the shortcut is a convolution if sizes change."""

    def __init__(self, channels: int, out: int, stride: int, norm: Norm, shortcut_bias: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = norm(out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = norm(out)
        self.relu2 = nn.ReLU()
        same = stride == 1 and channels == out
        self.shortcut = nn.Sequential() if same else nn.Sequential(
            OrderedDict(conv=nn.Conv2d(channels, out, 1, stride, bias=shortcut_bias), norm=norm(out)))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (n, channels, height, width) to (n, out, height / stride, width / stride)."""
        inner = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu2(inner + self.shortcut(x))
        return out


class ResNet18(nn.Sequential):
    """The layers in order, and where AdaptiveFL's published code begins to cut them: stages 4, 3 and 2."""

    start_layers: ClassVar[tuple[str, ...]] = ("layer4", "layer3", "layer2")


def build(
    input_shape: tuple[int, ...],
    classes: int,
    width: float = 1.0,
    hidden: Sequence[int] = HIDDEN,
    exits: Sequence[int] = (),
    norm: NormName = "batch",
) -> nn.Module:
    """Build the network: input (n, channels, height, width), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, height, width) of an image of at least 8 x 8.
        classes: number of classes; 0 for regression.
        width: factor of ``hidden`` and of the first convolution's 64 channels.
        hidden: channels of the four stages.
        exits: stages 0 to 2 that get an early exit.
        norm: after each convolution: ``batch``, ``static`` (HeteroFL's, for sub-models) or ``group``, which can be
            trained with privacy.

    Raises:
        ExperimentError: the samples are no such images, or a parameter is out of range.
    """
    channels, _, _ = check_image("resnet18", input_shape, _SMALLEST, "mlp")
    first, *sizes = scale_stages(_STEM, hidden, width)
    make_norm = choose_norm(norm)
    stem = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(channels, first, 3, 1, 1, bias=False), norm=make_norm(first), relu=nn.ReLU()
    )
    if not exits:
        return assemble(stem, first, sizes, classes, make_norm)
    stages, head = make_stages(first, sizes, make_norm), make_head(sizes[-1], classes)
    opening = nn.Sequential(OrderedDict([*stem.items(), ("layer1", stages[0])]))
    ends = [(size, True) for size in sizes]
    return with_exits("resnet18", [opening, *stages[1:]], ends, nn.Sequential(head), exits, classes)


def scale_stages(stem: int, hidden: Sequence[int], width: float) -> list[int]:
    """Return the channels of the first convolution and of the four stages, each multiplied by ``width``.

    Raises:
        ExperimentError: ``hidden`` is not a list of four positive whole numbers, or the width is out of range.
    """
    check_sizes("hidden", hidden)
    if len(hidden) != len(HIDDEN):
        raise ExperimentError(f"model.hidden = {list(hidden)}: ResNet18 has {len(HIDDEN)} stages; give as many numbers")
    return [scale_channels(size, width) for size in (stem, *hidden)]


def assemble(
    stem: OrderedDict[str, nn.Module],
    first: int,
    sizes: Sequence[int],
    classes: int,
    norm: Norm,
    shortcut_bias: bool = False,
) -> nn.Sequential:
    """Put a stem, the stages ``layer1`` to ``layer4`` and a classifier into one network.

    Args:
        stem: layers from the samples to images (n, first, height, width).
        first: channels that the stem returns.
        sizes: channels of the stages.
        classes: number of classes; 0 for regression.
        norm: after each convolution of the stages.
        shortcut_bias: whether the convolutions of shortcuts have one.
    """
    stages = make_stages(first, sizes, norm, shortcut_bias)
    layers = [(f"layer{k + 1}", stage) for k, stage in enumerate(stages)]
    return ResNet18(OrderedDict([*stem.items(), *layers, *make_head(sizes[-1], classes).items()]))


def make_stages(first: int, sizes: Sequence[int], norm: Norm, shortcut_bias: bool = False) -> list[nn.Sequential]:
    """Make the stages of two blocks each; all but the first halve height and width."""
    before = [first, *sizes]
    return [
        nn.Sequential(
            BasicBlock(before[k], size, 1 if k == 0 else 2, norm, shortcut_bias),
            BasicBlock(size, size, 1, norm, shortcut_bias),
        )
        for k, size in enumerate(sizes)
    ]


def make_head(features: int, classes: int) -> OrderedDict[str, nn.Module]:
    """Make the classifier: the mean over all places, then a linear layer."""
    return OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(features, max(classes, 1)))
