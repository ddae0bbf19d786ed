"""Features of images from VGG19 with published weights, for clusters (FedAIoT, section 3.2.1, scheme #2).

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015, configuration
E. The paper does not name the layer; here a feature is the mean over all places of an output of the convolutional part,
512 in all. The weights are in ``<FEDQUILT_DATA>/weights/vgg19.safetensors``, with torchvision's names.

The features are computed in float64. Processors differ in the last bits of the results, and k-means, which rounds
features to 16 bits, does not see those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedquilt_common.datasets import FOLDER_VARIABLE, data_folder
from fedquilt_common.errors import DataUnavailableError, ExperimentError, PayloadError
from fedquilt_common.wire.codec import FileArrays

FILE: Final = Path("weights", "vgg19.safetensors")
STAGES: Sequence[Sequence[int]] = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)
"""Channels of the convolutions; a max pooling follows each stage."""
SIDE: Final = 224
"""Height and width of the images on which the published weights were trained."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's red, green and blue, for values from 0 to 1."""
_KEY: Final = "data.partition.features = vgg19"
_ADVICE: Final = "docs/experiments.md has the command that writes it; without these weights, choose 'pca'"


@dataclass(frozen=True)
class _Convolution:
    """A 3 x 3 convolution with its ReLU.

    Attributes:
        weight: float64 of shape (channels, inputs, 3, 3).
        bias: float64 of shape (channels,).
        is_last: whether it ends a stage.
    """

    weight: Tensor
    bias: Tensor
    is_last: bool


def extract_features(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return VGG19's features of images, which are read one at a time.

    Args:
        x: values from 0 to 1 of shape (n, 3, height, width), or (n, 1, height, width) for grey images.

    Returns:
        float64 of shape (n, 512).

    Raises:
        ExperimentError: the samples are no such images.
        DataUnavailableError: the file of weights is missing, or is another one.
    """
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise ExperimentError(
            f"{_KEY}: samples of shape {tuple(x.shape[1:])} are no images of 1 or 3 channels; choose 'pca'"
        )
    layers = _load_convolutions(_find_file())
    with torch.inference_mode():
        return np.concatenate([_run(layers, _prepare(np.asarray(x[at : at + 1]))).numpy() for at in range(len(x))])


def _prepare(image: NDArray[Any]) -> Tensor:
    """Return an image as the published weights need it: float64 of shape (1, 3, 224, 224)."""
    if not (image.min() >= 0 and image.max() <= 1):
        raise ExperimentError(
            f"{_KEY}: an image has values from {image.min():g} to {image.max():g}, but they must be from 0 to 1; "
            "choose 'pca'"
        )
    colours = torch.from_numpy(image.astype(np.float64)).expand(-1, 3, -1, -1)
    resized = functional.interpolate(colours, size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (MEAN, STD))
    return (resized - mean) / std


def _run(layers: Sequence[_Convolution], x: Tensor) -> Tensor:
    for layer in layers:
        x = functional.relu(functional.conv2d(x, layer.weight, layer.bias, padding=1))
        if layer.is_last:
            x = functional.max_pool2d(x, 2)
    return x.mean(dim=(2, 3))


def _find_file() -> Path:
    folder = data_folder()
    if folder is None:
        raise DataUnavailableError(
            f"{_KEY}: set {FOLDER_VARIABLE} to the folder that contains {FILE.as_posix()}; {_ADVICE}"
        )
    if not (folder / FILE).is_file():
        raise DataUnavailableError(f"{_KEY}: there is no file {folder / FILE} with the weights; {_ADVICE}")
    return folder / FILE


def _load_convolutions(path: Path) -> list[_Convolution]:
    try:
        arrays = FileArrays(path)
    except (PayloadError, OSError) as error:
        raise DataUnavailableError(f"{path}: cannot be read ({error}); {_ADVICE}") from None
    return list(_take_convolutions(path, arrays))


def _take_convolutions(path: Path, arrays: FileArrays) -> Iterator[_Convolution]:
    """Read the convolutions in the order of torchvision's ``features``, where ReLUs and poolings count as well."""
    number, inputs = 0, 3
    for stage in STAGES:
        for place, channels in enumerate(stage):
            weight = _take(path, arrays, f"features.{number}.weight", (channels, inputs, 3, 3))
            bias = _take(path, arrays, f"features.{number}.bias", (channels,))
            yield _Convolution(weight, bias, place == len(stage) - 1)
            number, inputs = number + 2, channels
        number += 1


def _take(path: Path, arrays: FileArrays, name: str, shape: tuple[int, ...]) -> Tensor:
    if name not in arrays:
        raise DataUnavailableError(f"{path}: has no array {name}, so it is not VGG19's weights; {_ADVICE}")
    if arrays.shape(name) != shape:
        raise DataUnavailableError(
            f"{path}: {name} has the shape {arrays.shape(name)}, but VGG19's is {shape}; {_ADVICE}"
        )
    values = arrays[name].astype(np.float64)
    if not np.isfinite(values).all():
        raise DataUnavailableError(f"{path}: {name} has numbers that are not finite; {_ADVICE}")
    return torch.from_numpy(values)
