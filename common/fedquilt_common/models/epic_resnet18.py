"""FedAIoT's ResNet18 for spectrograms of EPIC-SOUNDS (FedAIoT thesis, section 2.3.3.7).

A 7 x 7 convolution with stride 2, a pooling, and the stages of ``resnet18`` with batch norm: 11,241,260 parameters for
one channel and 44 classes. The first convolution has 128 channels, as in the published code, so the first stage of 64
begins with a shortcut convolution.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fedquilt_common.models.norms import NormName, choose_norm
from fedquilt_common.models.resnet18 import assemble, scale_stages
from fedquilt_common.models.shapes import check_image

_STEM = 128
_SMALLEST = 8


def build(
    input_shape: tuple[int, ...],
    classes: int,
    width: float = 1.0,
    hidden: Sequence[int] = (64, 128, 256, 512),
    norm: NormName = "batch",
) -> nn.Module:
    """Build the network: input (n, channels, height, width), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: such as (1, 400 times, 128 mel bands) of ``epic-sounds``; at least 8 x 8.
        classes: number of classes; 0 for regression.
        width: factor of ``hidden`` and of the first convolution's 128 channels.
        hidden: channels of the four stages.
        norm: after each convolution: ``batch``, ``static`` (HeteroFL's, for sub-models) or ``group``, which can be
            trained with privacy.

    Raises:
        ExperimentError: the samples are no such spectrograms, or a parameter is out of range.
    """
    channels, _, _ = check_image("epic-resnet18", input_shape, _SMALLEST, "mlp")
    first, *sizes = scale_stages(_STEM, hidden, width)
    make_norm = choose_norm(norm)
    stem = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(channels, first, 7, 2, 3, bias=False), norm=make_norm(first), relu=nn.ReLU(),
        pool1=nn.MaxPool2d(3, 2, 1),
    )  # fmt: skip
    return assemble(stem, first, sizes, classes, make_norm)
