"""FedAIoT's ResNet18 with group norm for Wi-Fi signals (FedAIoT thesis, sections 2.3.3.2 and 2.3.3.3).

A stem turns the signals into images of three channels. A 7 x 7 convolution, a pooling and the stages of ``resnet18``
follow, with two groups in each norm: 11,182,142 parameters for UT-HAR (3 x 30 x 250, seven classes) and 11,185,706 for
Widar (22 x 20 x 20, nine classes). As in the published code, the convolutions of shortcuts have a bias. Unlike there,
the first convolution of a stage halves the sides, not the second, as in He et al., "Deep Residual Learning for Image
Recognition", CVPR 2016. Group norm has no running statistics, so only parameters are averaged.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.norms import make_group_norm
from fedquilt_common.models.resnet18 import assemble, scale_stages
from fedquilt_common.models.shapes import check_image, check_size

_STEM = 64
_SMALLEST = 8
_IMAGE = 3
"""Channels of the image that the stem makes."""
_PACKETS, _AMPLITUDES = 64, 28
"""With fewer packets or amplitudes, the stem for amplitudes leaves no image."""


class AmplitudeTable(nn.Module):
    """Turns (n, antennas, subcarriers, packets) into a table (n, 1, packets, antennas x subcarriers)."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of shape (n, antennas, subcarriers, packets); antennas vary slowest in a row of the table."""
        return self.flatten(x).mT.unsqueeze(1)  # type: ignore[no-any-return]


def build(
    input_shape: tuple[int, ...],
    classes: int,
    width: float = 1.0,
    hidden: Sequence[int] = (64, 128, 256, 512),
    groups: int = 2,
    stem: str = "auto",
) -> nn.Module:
    """Build the network: output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: amplitudes (antennas, subcarriers, packets) of at least 64 packets of 28 amplitudes, or profiles
            (frames, height, width) of at least 8 x 8.
        classes: number of classes; 0 for regression.
        width: factor of ``hidden`` and of the first convolution's 64 channels.
        hidden: channels of the four stages, rounded down to a multiple of ``groups``.
        groups: of each norm.
        stem: ``amplitudes`` (UT-HAR), ``profiles`` (Widar), or ``auto``: amplitudes if a sample has more packets than
            subcarriers and is large enough.

    Raises:
        ExperimentError: the samples have no such shape, or a parameter is out of range.
    """
    shape = check_image("resnet18-gn", input_shape, _SMALLEST, "mlp")
    check_size("groups", groups)
    first, *sizes = (max(size // groups, 1) * groups for size in scale_stages(_STEM, hidden, width))
    norm = functools.partial(make_group_norm, groups=groups)
    opening = OrderedDict[str, nn.Module](
        reshape=_make_stem(stem, shape), conv=nn.Conv2d(_IMAGE, first, 7, 2, 3, bias=False), norm=norm(first),
        relu=nn.ReLU(), pool1=nn.MaxPool2d(3, 2, 1),
    )  # fmt: skip
    return assemble(opening, first, sizes, classes, norm, shortcut_bias=True)


def _make_stem(name: str, shape: tuple[int, int, int]) -> nn.Module:
    if name not in ("auto", "amplitudes", "profiles"):
        raise ExperimentError(f"model.stem = {name!r}: must be auto, amplitudes or profiles")
    antennas, subcarriers, packets = shape
    fits = packets >= _PACKETS and antennas * subcarriers >= _AMPLITUDES
    if name == "profiles" or (name == "auto" and not (fits and packets > subcarriers)):
        return _profile_stem(shape[0])
    if not fits:
        raise ExperimentError(
            f"model.stem = amplitudes: samples of shape {shape} are no amplitudes (antennas, subcarriers, packets) of "
            f"at least {_PACKETS} packets of {_AMPLITUDES} amplitudes; set it to profiles"
        )
    return _amplitude_stem()


def _profile_stem(frames: int) -> nn.Module:
    """Widar's stem, from (n, frames, height, width) to (n, 3, height + 12, width + 12)."""
    layers = nn.ConvTranspose2d(frames, _IMAGE, 7), nn.ReLU(), nn.ConvTranspose2d(_IMAGE, _IMAGE, 7), nn.ReLU()
    return nn.Sequential(OrderedDict(zip(("conv1", "relu1", "conv2", "relu2"), layers, strict=True)))


def _amplitude_stem() -> nn.Module:
    """UT-HAR's stem, from (n, antennas, subcarriers, packets) to (n, 3, places...)."""
    return nn.Sequential(OrderedDict[str, nn.Module](
        table=AmplitudeTable(), conv1=nn.Conv2d(1, _IMAGE, 7, (3, 1)), relu1=nn.ReLU(), pool=nn.MaxPool2d(2),
        conv2=nn.Conv2d(_IMAGE, _IMAGE, (10, 11)), relu2=nn.ReLU(),
    ))  # fmt: skip
