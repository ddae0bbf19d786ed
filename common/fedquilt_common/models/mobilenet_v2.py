"""MobileNetV2 (Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, table 2).

For small images: the first convolution and the second stage have stride 1. With ``bias`` and ``expand_first`` it is
the network of AdaptiveFL's published code: 2,275,702 parameters for Widar (22 x 20 x 20, 22 classes).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from fedquilt_common.models.exits import with_exits
from fedquilt_common.models.norms import Norm, NormName, choose_norm
from fedquilt_common.models.shapes import check_image, scale_channels

SETTINGS = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""(expansion, channels, blocks, stride of the first block) of each stage."""
_FIRST, _LAST = 32, 1280
_SMALLEST = 8


class InvertedResidual(nn.Module):
    """Expand, filter each channel separately, project; the input is added if it has the same size.

    Attributes:
        residual: whether the input is added.
        channel_units: a sub-model expands the channels of its input by the same factor.
    """

    def __init__(
        self, channels: int, out: int, stride: int, expansion: int, bias: bool, expand_first: bool, norm: Norm
    ) -> None:
        super().__init__()
        inner = channels * expansion
        expand = _convolution_layers(channels, inner, 1, norm, bias=bias) if expansion != 1 or expand_first else {}
        depthwise = _convolution_layers(inner, inner, 3, norm, stride, inner, bias)
        self.layers = nn.Sequential(OrderedDict([
            *((f"expand_{name}", layer) for name, layer in expand.items()),
            *((f"depthwise_{name}", layer) for name, layer in depthwise.items()),
            ("project_conv", nn.Conv2d(inner, out, 1, bias=bias)),
            ("project_norm", norm(out)),
        ]))  # fmt: skip
        self.residual = stride == 1 and channels == out
        self.channel_units = {"layers.expand_conv": expansion}

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (n, channels, height, width) to (n, out, height / stride, width / stride)."""
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


class MobileNetV2(nn.Sequential):
    """The layers in order, and where AdaptiveFL's published code begins to cut them: stages 4, 3 and 2."""

    start_layers: ClassVar[tuple[str, ...]] = tuple(f"stage{stage}_0.layers.project_conv" for stage in (3, 2, 1))


def build(
    input_shape: tuple[int, ...],
    classes: int,
    width: float = 1.0,
    bias: bool = False,
    expand_first: bool = False,
    exits: Sequence[int] = (),
    norm: NormName = "batch",
) -> nn.Module:
    """Build the network: input (n, channels, height, width), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, height, width) of an image of at least 8 x 8.
        classes: number of classes; 0 for regression.
        width: factor of all channels.
        bias: whether convolutions have one.
        expand_first: give the first block, whose expansion is 1, an expanding convolution too.
        exits: stages 0 to 5 of inverted residuals that get an early exit.
        norm: after each convolution: ``batch``, ``static`` (HeteroFL's, for sub-models) or ``group``, which can be
            trained with privacy.

    Raises:
        ExperimentError: the samples are no such images, or a parameter is out of range.
    """
    channels, _, _ = check_image("mobilenet-v2", input_shape, _SMALLEST, "mlp")
    previous, make_norm = scale_channels(_FIRST, width), choose_norm(norm)
    first = _convolution_layers(channels, previous, 3, make_norm, bias=bias)
    stages = [OrderedDict[str, nn.Module]() for _ in SETTINGS]
    stages[0].update((f"first_{name}", layer) for name, layer in first.items())
    sizes = [scale_channels(size, width) for _, size, _, _ in SETTINGS]
    for stage, (expansion, _, count, first_stride) in enumerate(SETTINGS):
        for block in range(count):
            stride, out = first_stride if block == 0 else 1, sizes[stage]
            stages[stage][f"stage{stage}_{block}"] = InvertedResidual(
                previous, out, stride, expansion, bias, expand_first, make_norm
            )
            previous = out
    last = scale_channels(_LAST, width)
    end = _convolution_layers(previous, last, 1, make_norm, bias=bias)
    head = OrderedDict((f"last_{name}", layer) for name, layer in end.items())
    head |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(last, max(classes, 1))}
    if exits:
        ends = [(size, True) for size in sizes]
        return with_exits(
            "mobilenet-v2", [nn.Sequential(stage) for stage in stages], ends, nn.Sequential(head), exits, classes
        )
    return MobileNetV2(OrderedDict(layer for stage in [*stages, head] for layer in stage.items()))


def _convolution_layers(
    channels: int, out: int, kernel: int, norm: Norm, stride: int = 1, groups: int = 1, bias: bool = False
) -> dict[str, nn.Module]:
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=bias)
    return {"conv": conv, "norm": norm(out), "relu": nn.ReLU6()}
