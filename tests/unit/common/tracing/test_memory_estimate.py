"""The estimate of the memory that training takes: what it depends on, and against peaks that the kernel saw."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.packages import needs
from tests.support.warm import call

from fedquilt_common.algorithms.scalefl import absent_arrays
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.models import build_model
from fedquilt_common.privacy.sample_batches import largest_draw, samples_at_once
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.tracing.memory_estimate import Estimate, memory_to_train
from fedquilt_common.tracing.trace import Blueprint, blueprint_for

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
import memory
import privacy

TRAINING = Training(batch=10, lr=0.01, momentum=0.9)


@cache
def plan(name: str, classes: int = 10) -> Blueprint:
    return blueprint_for(build_model(name, {}, (3, 32, 32), classes), np.zeros((1, 3, 32, 32), np.float32))


def of(name: str, width: float = 1.0, **training: Any) -> Estimate:
    asked = TRAINING.model_copy(update=training)
    return memory_to_train(plan(name), prefix(plan(name).anatomy, width, "ceil"), asked)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which reports the peak memory of a process")
@pytest.mark.parametrize(
    ("model", "width", "batch", "precision"),
    [("mlp", 1.0, 50, "fp32"), ("convnet", 1.0, 100, "fp32"), ("resnet18", 0.4, 20, "fp32"),
     ("mobilenet-v2", 0.4, 20, "fp32"), ("transformer", 1.0, 10, "fp32"), ("convnet", 1.0, 100, "bf16"),
     ("casas-bilstm", 0.4, 10, "fp32"), ("resnet18-gn", 0.4, 10, "fp32")],
)  # fmt: skip
def test_the_estimate_is_within_a_quarter_of_the_measured_peak(
    model: str, width: float, batch: int, precision: Any
) -> None:
    case = memory.Case(model, width, batch, precision)
    assert memory.estimate(case) == pytest.approx(call(memory.train_once, case), rel=0.25)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which reports the peak memory of a process")
@pytest.mark.parametrize(("model", "batch"), [("mlp", 10), ("image-cnn", 64), ("wisdm-lstm", 32)])
def test_the_estimate_of_private_training_is_within_a_quarter_of_the_measured_peak(model: str, batch: int) -> None:
    needs("opacus", "needs the extra dp")
    estimate = privacy.estimate(model, batch, True)
    assert estimate == pytest.approx(call(privacy.measure_peak, model, batch, True), rel=0.25)


def test_private_training_keeps_the_gradient_of_each_sample_up_to_a_limit() -> None:
    plain, private = (privacy.estimate("tabular", 64, kind) for kind in (False, True))
    numbers = sum(math.prod(shape) for shape in memory.prepare(privacy.case_of("tabular", 1))[2].shapes.values())
    assert private - plain == pytest.approx(4 * numbers * (largest_draw(64) + 1), rel=0.1)
    small, large = (privacy.estimate("mlp", batch, True) for batch in (32, 256))
    assert samples_at_once(10_510_346) == 6
    assert small == large


def test_the_total_is_the_sum_of_its_parts() -> None:
    e = of("resnet18")
    params = 4 * sum(np.prod(plan("resnet18").anatomy.arrays[n].shape) for n in plan("resnet18").parameters)
    assert e.gradients == e.optimiser == params
    assert e.weights == 4 * full_slice(plan("resnet18").anatomy).entries
    assert e.total == e.weights + e.optimiser + e.activations + e.temporaries + e.kernels


def test_half_precision_halves_what_is_kept() -> None:
    whole, half = of("vgg16"), of("vgg16", precision="bf16")
    assert (half.weights, half.gradients, half.optimiser) == (
        whole.weights // 2, whole.gradients // 2, whole.optimiser // 2,
    )  # fmt: skip
    assert half.activations < 0.6 * whole.activations


def test_amp_keeps_weights_in_full_and_activations_in_half() -> None:
    whole, half, amp = of("resnet18"), of("resnet18", precision="fp16"), of("resnet18", precision="amp")
    assert amp.weights == whole.weights + whole.gradients // 2  # and a copy of each parameter in half precision
    assert (amp.gradients, amp.optimiser) == (whole.gradients, whole.optimiser)
    assert half.activations <= amp.activations < 0.6 * whole.activations


def test_without_momentum_there_is_no_state_of_the_optimiser() -> None:
    assert of("mlp", momentum=0.0).optimiser == 0
    assert of("mlp").total - of("mlp", momentum=0.0).total == of("mlp").optimiser


@pytest.mark.parametrize(("optimiser", "averages"), [("sgd", 0), ("rmsprop", 1), ("adam", 2), ("rmsprop-keras", 1)])
def test_optimisers_keep_averages_of_each_parameter(optimiser: str, averages: int) -> None:
    found, plain = of("mlp", optimiser=optimiser, momentum=0.0), of("mlp", momentum=0.0)
    assert found.optimiser == averages * plain.gradients
    assert (found.total - plain.total > found.optimiser) == (averages > 0)  # and a step's own array


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which reports the peak memory of a process")
def test_the_estimate_of_adam_is_within_a_quarter_of_the_measured_peak() -> None:
    """The model is the one that the test above leaves out."""
    case = memory.Case("vgg16", 0.4, 10, "fp32", optimiser="adam")
    assert memory.estimate(case) == pytest.approx(call(memory.train_once, case), rel=0.25)


def test_weight_decay_takes_a_copy_of_the_largest_gradient() -> None:
    largest = 4 * max(int(np.prod(a.shape)) for a in plan("mlp").anatomy.arrays.values())
    assert of("mlp", weight_decay=0.1, batch=1).total - of("mlp", batch=1).total == pytest.approx(largest, rel=0.1)


@pytest.mark.parametrize("model", ["convnet", "vgg16", "resnet18", "preact-resnet18", "mobilenet-v2"])
def test_activations_grow_with_the_batch_and_everything_with_the_width(model: str) -> None:
    small, large = of(model, batch=8), of(model, batch=32)
    assert large.activations == 4 * small.activations
    assert large.weights == small.weights
    totals = [of(model, width).total for width in (0.25, 0.5, 0.75, 1.0)]
    assert totals == sorted(set(totals))


def test_what_is_cut_off_in_depth_takes_nothing() -> None:
    blueprint = blueprint_for(
        build_model("convnet", {"exits": [1, 2]}, (3, 32, 32), 10), np.zeros((1, 3, 32, 32), np.float32)
    )
    whole = full_slice(blueprint.anatomy)
    shallow = replace(whole, absent=absent_arrays(blueprint.anatomy, 1))
    assert shallow.absent
    assert memory_to_train(blueprint, shallow, TRAINING).total < memory_to_train(blueprint, whole, TRAINING).total
