"""Sampling and mosaics that do not suit the data set are refused before a run starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.types import Dataset, Examples
from fedquilt_server.lab.workbench import Workbench

USUAL = {
    "name": "x",
    "data": {"set": "digits", "clients": 2},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
}
OWN = [{"clients": 2, "variants": [{"training": {"sampling": "balanced"}}]}]


def bench(classes: int, y: np.ndarray[Any, Any], **keys: Any) -> Workbench:
    made = Workbench(Experiment.model_validate({**USUAL, **keys}))
    part = Examples(np.zeros((len(y), 4), np.float32), y)
    made.__dict__["dataset"] = Dataset("homes", part, part, classes)
    return made


@pytest.mark.parametrize("keys", [{"training": {"sampling": "balanced"}}, {"fleet": OWN}])
def test_a_data_set_without_classes_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ExperimentError, match="data set 'homes' has no class for each sample"):
        bench(0, np.zeros((6, 1)), **keys).check()


def test_other_experiments_may_start() -> None:
    bench(2, np.zeros(6, np.int64), training={"sampling": "balanced"}).check()
    bench(0, np.zeros((6, 1))).check()


@pytest.mark.parametrize(
    "keys", [{"training": {"mosaic": 0.5}}, {"fleet": [{"clients": 2, "variants": [{"training": {"mosaic": 1}}]}]}]
)
def test_mosaics_without_boxes_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ExperimentError, match=r"training.mosaic: the data set 'homes' has no boxes"):
        bench(2, np.zeros(6, np.int64), **keys).check()


def images(shape: tuple[int, ...], dtype: type = np.float32, **augment: Any) -> Workbench:
    made = Workbench(Experiment.model_validate({**USUAL, "training": {"augment": augment}}))
    part = Examples(np.zeros((6, *shape), dtype), np.arange(6) % 2)
    made.__dict__["dataset"] = Dataset("photos", part, part, 2)
    return made


@pytest.mark.parametrize(
    ("bench", "reason"),
    [
        (images((18,), crop=2), r"training.augment: the data set 'photos' has no images; it needs images"),
        (images((1, 8, 8), np.int64, flip=True), r"training.augment: the data set 'photos' has no images"),
        (images((1, 8, 8), crop=8), r"training.augment.crop = 8: the images are 8 x 8"),
    ],
)
def test_random_crops_of_what_are_no_images_are_refused(bench: Workbench, reason: str) -> None:
    with pytest.raises(ExperimentError, match=reason):
        bench.check()


def test_images_can_be_cropped_and_mirrored() -> None:
    images((1, 8, 8), crop=2, flip=True).check()
