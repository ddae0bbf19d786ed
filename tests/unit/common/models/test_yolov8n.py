"""YOLOv8n: its size, its loss and its detections. Most tests need ``fedquilt[vision]``."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt_common.errors import ExperimentError, UncuttableModelError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Detection
from fedquilt_common.models import build_model
from fedquilt_common.tracing.trace import blueprint_for
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.torch_setup import set_up_torch
from fedquilt_common.types import Examples

CLASSES = 3
SHAPE = (3, 64, 96)
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("ultralytics") is None, reason="needs ultralytics: pip install 'fedquilt[vision]'"
)


def squares() -> Examples:
    """Images with a coloured square, whose channel is its class; two images have none."""
    rng = np.random.default_rng(0)
    x, y = np.zeros((8, *SHAPE), np.float32), np.full((8, 4, 5), -1, np.float32)
    for image, boxes in zip(x[:6], y[:6], strict=True):
        label, left, top = rng.integers(0, CLASSES), rng.integers(0, 64), rng.integers(0, 32)
        image[label, top : top + 32, left : left + 32] = 1
        boxes[0] = label, (left + 16) / 96, (top + 16) / 64, 32 / 96, 32 / 64
    return Examples(x, y)


def learner(**training: Any) -> TorchLearner:
    settings = Training(**{"epochs": 1, "batch": 4, "lr": 0.001, "optimiser": "adam", **training})
    return TorchLearner(build_model("yolov8n", {}, SHAPE, CLASSES), settings, Detection(CLASSES))


def same_bits(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


@needs_package
def test_it_has_the_published_size() -> None:
    module = build_model("yolov8n", {}, (3, 64, 64), 12)()
    assert sum(parameter.numel() for parameter in module.parameters()) == 3_013_188


@needs_package
@pytest.mark.parametrize("precision", ["fp32", "amp", "fp16", "bf16"])
def test_it_trains_in_each_precision_with_the_same_bits_again(precision: str) -> None:
    mode = torch.get_deterministic_debug_mode()
    set_up_torch()
    try:
        one, data = learner(precision=precision, optimiser="sgd", lr=0.01), squares()
        start = one.init(0)
        trained = one.train(start, data, seed=1)
        assert same_bits(trained.arrays, one.train(start, data, seed=1).arrays)
    finally:
        torch.set_deterministic_debug_mode(mode)
    assert np.isfinite(trained.loss)
    assert not same_bits(trained.arrays, start)
    fixed = "network.model.22.dfl.conv.weight"
    assert np.array_equal(trained.arrays[fixed], start[fixed])


@needs_package
def test_it_learns_and_evaluation_scores_its_candidates() -> None:
    one, data = learner(epochs=60), squares()
    start = one.init(0)
    first = one.train(start, data, seed=1, epochs=1)
    trained = one.train(start, data, seed=1)
    assert trained.loss < first.loss
    (found,) = one.predict(trained.arrays, data)
    assert found.shape == (8, 8 * 12 + 4 * 6 + 2 * 3, 4 + CLASSES)  # one candidate for each place of three maps
    assert ((found[..., 4:] >= 0) & (found[..., 4:] <= 1)).all()
    assert one.evaluate(trained.arrays, data)["map50"] > one.evaluate(start, data)["map50"]


@needs_package
def test_boxes_are_parts_of_the_image() -> None:
    module = build_model("yolov8n", {}, SHAPE, CLASSES)().eval()
    images = torch.zeros(1, *SHAPE)
    with torch.no_grad():
        (found,) = module(images)
        (pixels,) = module.get_submodule("network")(images)[0]
    size = torch.tensor([96.0, 64, 96, 64])
    torch.testing.assert_close(found[:, :4] * size, pixels.T[:, :4])
    assert torch.equal(found[:, 4:], pixels.T[:, 4:])


@needs_package
def test_sub_models_are_refused() -> None:
    with pytest.raises(UncuttableModelError, match="choose an algorithm that sends whole models"):
        blueprint_for(build_model("yolov8n", {}, SHAPE, CLASSES), squares().x)


ALONE = """
import json, os, sys
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event in ("socket.connect", "socket.getaddrinfo") else None)
before = dict(os.environ)
from fedquilt_common.learning_tasks import Detection
from fedquilt_common.models import build_model
build_model("yolov8n", {}, (3, 64, 64), 12)()
print(json.dumps({"seen": seen, "same": dict(os.environ) == before, "home": os.listdir(os.environ["HOME"])}))
"""


@needs_package
def test_it_asks_no_network_and_leaves_home_and_environment_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"seen": [], "same": True, "home": []}
    assert done.stderr == ""


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics.nn.tasks", None)
    with pytest.raises(ExperimentError, match=r"needs the package ultralytics .*pip install 'fedquilt\[vision\]'"):
        build_model("yolov8n", {}, SHAPE, CLASSES)()


@pytest.mark.parametrize(("shape", "classes"), [((64,), 3), ((3, 60, 64), 3), ((3, 64, 40), 3), ((3, 64, 64), 0)])
def test_samples_that_do_not_suit_it(shape: tuple[int, ...], classes: int) -> None:
    with pytest.raises(ExperimentError, match=r"model\.name = yolov8n: samples of shape"):
        build_model("yolov8n", {}, shape, classes)()
