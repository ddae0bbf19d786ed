"""Pre-activation ResNet18 with static batch norm and a Scaler after each convolution, as HeteroFL and FedRolex use it.

He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016; Diao et al., "HeteroFL", ICLR 2021, section 3;
FedRolex thesis, section 3.3. A block's shortcut convolution takes the output of its first norm and ReLU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.norms import Norm, NormName, choose_norm
from fedquilt_common.models.shapes import check_image, check_sizes, scale_channels
from fedquilt_common.models.static_norm import Scaler

_SMALLEST = 8


class PreActBlock(nn.Module):
    """Scaler, norm, ReLU and convolution, twice; the shortcut is a convolution if sizes change."""

    def __init__(self, channels: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.scale1 = Scaler()
        self.norm1 = norm(channels)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.scale2 = Scaler()
        self.norm2 = norm(out)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        same = stride == 1 and channels == out
        self.shortcut = None if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (n, channels, height, width) to (n, out, height / stride, width / stride)."""
        ready = self.relu1(self.norm1(self.scale1(x)))
        shortcut = x if self.shortcut is None else self.shortcut(ready)
        inner = self.relu2(self.norm2(self.scale2(self.conv1(ready))))
        out: Tensor = self.conv2(inner) + shortcut
        return out


def build(
    input_shape: tuple[int, ...],
    classes: int,
    width: float = 1.0,
    hidden: Sequence[int] = (64, 128, 256, 512),
    blocks: Sequence[int] = (2, 2, 2, 2),
    norm: NormName = "static",
) -> nn.Module:
    """Build the network: input (n, channels, height, width), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, height, width) of an image of at least 8 x 8.
        classes: number of classes; 0 for regression.
        width: factor of all channels.
        hidden: channels of each stage.
        blocks: number of blocks in each stage.
        norm: ``static`` (HeteroFL's), ``batch`` or ``group``, which can be trained with privacy.

    Raises:
        ExperimentError: the samples are no such images, or a parameter is out of range.
    """
    channels, _, _ = check_image("preact-resnet18", input_shape, _SMALLEST, "mlp")
    check_sizes("hidden", hidden)
    check_sizes("blocks", blocks)
    if len(hidden) != len(blocks):
        raise ExperimentError(f"model.blocks = {list(blocks)}: must have as many stages as model.hidden: {len(hidden)}")
    sizes, make_norm = [scale_channels(size, width) for size in hidden], choose_norm(norm)
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv=nn.Conv2d(channels, sizes[0], 3, 1, 1, bias=False))
    previous = sizes[0]
    for stage, (size, count) in enumerate(zip(sizes, blocks, strict=True)):
        strides = [1 if stage == 0 else 2, *[1] * (count - 1)]
        layers[f"layer{stage + 1}"] = nn.Sequential(*(
            PreActBlock(previous if number == 0 else size, size, stride, make_norm)
            for number, stride in enumerate(strides)
        ))  # fmt: skip
        previous = size
    layers |= {"scale": Scaler(), "norm": make_norm(previous), "relu": nn.ReLU()}
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(previous, max(classes, 1))}
    return nn.Sequential(layers)
