"""YOLOv8n, the detector of FedAIoT for VisDrone (FedAIoT thesis, section 2.3.3.4), as Ultralytics builds it.

Terven and Cordova-Esparza, "A Comprehensive Review of YOLO", 2023. 3,013,188 parameters for twelve classes, of which 16
are fixed. Network and loss come from the package ``ultralytics``, which ``fedquilt[detection]`` installs and whose
licence is AGPL-3.0. The network is built from the package's own description, without published weights.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.shapes import check_image

STRIDE: Final = 32
"""Height and width of an image are multiples of this number."""
GAINS: Final = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)
"""Weights of the three parts of the loss, the package's defaults and FedAIoT's: boxes, classes, edges."""
LEAST_SCORE: Final = 0.001
LARGEST_OVERLAP: Final = 0.7
MOST_DETECTIONS: Final = 300
"""The package's settings of an evaluation: detections below the score, and those that overlap a better one of their
class more than this, are left out."""


class YoloV8(nn.Module):
    """Wraps the network with its loss for training, and with non-maximum suppression for evaluation."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        """Detect objects in images of shape (n, channels, height, width) with values from 0 to 1.

        Returns:
            In training, what ``training_loss`` takes. In evaluation the detections by falling score, float of shape
            (n, 300, 6): class, centre x, centre y, width and height as parts of the image, and score; the class is -1
            where there is no detection.
        """
        found: Any = self.network(x)
        if self.training:
            return [found["boxes"], found["scores"], *found["feats"]]
        return _suppress(found[0], x.shape[-2:])

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
                f"model.name = yolov8n: needs the package ultralytics ({error}); install fedquilt[detection]"
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


def _suppress(predictions: Tensor, size: torch.Size) -> Tensor:
    """Keep the best ones of overlapping detections.

    Args:
        predictions: shape (n, 4 + classes, places): centre x, centre y, width and height in pixels, and scores.
        size: height and width of the images.

    Returns:
        As ``YoloV8.forward`` returns it.
    """
    from ultralytics.utils.nms import non_max_suppression

    # Without a limit on the time, which would make the result depend on the machine.
    found = non_max_suppression(
        predictions, LEAST_SCORE, LARGEST_OVERLAP, multi_label=True, max_det=MOST_DETECTIONS, max_time_img=math.inf
    )
    height, width = size
    detections = predictions.new_zeros((len(found), MOST_DETECTIONS, 6))
    detections[..., 0] = -1
    for kept, boxes in zip(detections, found, strict=True):
        left, top, right, bottom, score, label = boxes.unbind(1)
        columns = (label, (left + right) / 2 / width, (top + bottom) / 2 / height, (right - left) / width,
                   (bottom - top) / height, score)  # fmt: skip
        kept[: len(boxes)] = torch.stack(columns, dim=1)
    return detections
