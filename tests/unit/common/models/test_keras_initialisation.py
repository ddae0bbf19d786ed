"""Keras's initialisation: Glorot's bounds, zero biases, an LSTM's forget gate; from the seed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedquilt_common.experiment.sections import Model
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.tracing.building import build_on_meta
from fedquilt_common.training.learner import TorchLearner


def first_numbers(name: str, shape: tuple[int, ...], seed: int = 1, how: str = "keras", **params: Any) -> Any:
    build = build_model(name, params, shape, 6, initialisation=how)
    return TorchLearner(build, Training(), Classification(6)).init(seed)


def test_a_linear_layer_has_glorot_weights_and_no_bias() -> None:
    arrays = first_numbers("tabular", (50,), hidden=[40])
    weights = [x for x in arrays.values() if x.ndim == 2]
    assert [w.shape for w in weights] == [(40, 50), (6, 40)]
    for weight in weights:
        bound = np.sqrt(6 / sum(weight.shape))
        assert 0.9 * bound < np.abs(weight).max() <= bound
    assert not any(x.any() for x in arrays.values() if x.ndim == 1)


def test_a_convolution_counts_the_kernel_in_its_inputs_and_outputs() -> None:
    arrays = first_numbers("image-cnn", (1, 12, 12))
    kernel = next(x for x in arrays.values() if x.ndim == 4)
    bound = np.sqrt(6 / ((kernel.shape[0] + kernel.shape[1]) * kernel.shape[2] * kernel.shape[3]))
    assert 0.8 * bound < np.abs(kernel).max() <= bound


def test_an_lstm_is_orthogonal_and_remembers() -> None:
    arrays = first_numbers("time-series", (4, 60), units=5, lstms=1)
    recurrent = arrays["lstm.weight_hh_l0"]
    np.testing.assert_allclose(recurrent.T @ recurrent, np.eye(5), atol=1e-5)
    bias = arrays["lstm.bias_ih_l0"] + arrays["lstm.bias_hh_l0"]
    assert bias.tolist() == [0] * 5 + [1] * 5 + [0] * 10


def test_it_depends_on_the_seed_alone_and_differs_from_torch() -> None:
    same, again = first_numbers("tabular", (9,)), first_numbers("tabular", (9,))
    assert all(same[name].tobytes() == again[name].tobytes() for name in same)
    for other in (first_numbers("tabular", (9,), seed=2), first_numbers("tabular", (9,), how="torch")):
        assert any(same[name].tobytes() != other[name].tobytes() for name in same)


def test_nothing_is_drawn_where_only_shapes_matter() -> None:
    module = build_on_meta(build_model("time-series", {}, (4, 60), 6, initialisation="keras"))
    assert all(parameter.is_meta for parameter in module.parameters())


def test_the_key_of_an_experiment_is_no_parameter_of_the_factory() -> None:
    model = Model.model_validate({"name": "tabular", "hidden": [9], "initialisation": "keras"})
    assert (model.initialisation, model.params) == ("keras", {"hidden": [9]})
    with pytest.raises(ValidationError, match="torch"):
        Model.model_validate({"name": "tabular", "initialisation": "lecun"})
