"""YOLOv8n, the detector of FedAIoT for VisDrone (FedAIoT thesis, section 2.3.3.4), as Ultralytics builds it.

Terven and Cordova-Esparza, "A Comprehensive Review of YOLO", 2023. 3,013,188 parameters for twelve classes, of which 16
are fixed. Network and loss come from the package ``ultralytics``, which ``fedquilt[vision]`` installs and whose
licence is AGPL-3.0. The network is built from the package's own description, without published weights.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError, how_to_install
from fedquilt_common.models.shapes import check_image

STRIDE: Final = 32
"""Height and width of an image are multiples of this number."""
GAINS: Final = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)
"""Weights of the three parts of the loss, the package's defaults and FedAIoT's: boxes, classes, edges."""


class YoloV8(nn.Module):
    """The network with its loss, and with candidates in evaluation as the learning task ``detection`` takes them."""

    channels_last = True

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        """Detect objects in images of shape (n, channels, height, width) with values from 0 to 1.

        Returns:
            In training, what ``training_loss`` takes. In evaluation candidates, float of shape (n, candidates, 4 +
            classes): centre x, centre y, width and height as parts of the image, then a score for each class.
        """
        found: Any = self.network(x)
        if self.training:
            return [found["boxes"], found["scores"], *found["feats"]]
        candidates: Tensor = found[0].transpose(1, 2).clone()
        height, width = x.shape[-2:]
        candidates[..., :4] /= candidates.new_tensor([width, height, width, height])
        return candidates

    def training_loss(self, outputs: list[Tensor], targets: Tensor) -> Tensor:
        """Return the package's loss of a batch, the mean over its images.

        Args:
            outputs: of ``forward`` in training: distributions of the boxes' edges, logits of the classes, feature maps.
            targets: float32 of shape (n, boxes, 5): class, centre x, centre y, width and height as parts of the image;
                the class is -1 where there is no box.
        """
        from ultralytics.utils.loss import v8DetectionLoss

        boxes, scores, *features = outputs
        there = targets[..., 0] >= 0
        labels = targets[there]
        batch = {"batch_idx": there.nonzero()[:, 0], "cls": labels[:, 0], "bboxes": labels[:, 1:]}
        parts, _ = v8DetectionLoss(self.network).loss({"boxes": boxes, "scores": scores, "feats": features}, batch)
        mean: Tensor = parts.sum() / len(boxes)  # the package multiplies by the number of images
        return mean


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build the detector: input (n, channels, height, width), output as ``YoloV8.forward`` describes.

    Args:
        input_shape: (channels, height, width), the sides multiples of 32.
        classes: number of classes.

    Raises:
        ExperimentError: the samples are no such images, or ``ultralytics`` is not installed.
    """
    channels, height, width = check_image("yolov8n", input_shape, STRIDE, "resnet18")
    if height % STRIDE or width % STRIDE or classes < 1:
        raise ExperimentError(
            f"model.name = yolov8n: samples of shape {tuple(input_shape)} with {classes} classes do not suit it; it "
            f"needs images with sides that are multiples of {STRIDE}, and at least one class"
        )
    network = _import_network()("yolov8n.yaml", ch=channels, nc=classes, verbose=False)
    network.args = GAINS
    return YoloV8(network)


def _import_network() -> Any:
    """Import the package's class of the network.

    Raises:
        ExperimentError: the package is not installed.
    """
    with contextlib.nullcontext() if "ultralytics" in sys.modules else _leave_no_trace():
        try:
            from ultralytics.nn.tasks import DetectionModel
        except ImportError as error:
            raise ExperimentError(
                f"model.name = yolov8n: needs the package ultralytics ({error}); {how_to_install('vision')}"
            ) from error
    return DetectionModel


@contextlib.contextmanager
def _leave_no_trace() -> Iterator[None]:
    """Keep the package's first import from asking the network, and from changing anything outside it.

    It would set environment variables, numpy's format of numbers and filters of warnings, and write its settings below
    the home folder.
    """
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, np.printoptions(), warnings.catch_warnings():
        os.environ.update(YOLO_OFFLINE="true", YOLO_VERBOSE="false", YOLO_CONFIG_DIR=folder)
        try:
            yield
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)
