"""Models by name, one file each. Importing this package does not import torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from fedquilt_common.errors import ExperimentError, FedquiltError
from fedquilt_common.user_imports import (
    USER_ERRORS,
    describe_error,
    describe_sys_exit,
    find_parameters,
    package_of,
    resolve,
    suggest,
)

if TYPE_CHECKING:
    from torch import nn

MODELS: dict[str, str] = {
    "mlp": "fedquilt_common.models.mlp:build",
    "convnet": "fedquilt_common.models.convnet:build",
    "vgg16": "fedquilt_common.models.vgg16:build",
    "resnet18": "fedquilt_common.models.resnet18:build",
    "preact-resnet18": "fedquilt_common.models.preact_resnet18:build",
    "mobilenet-v2": "fedquilt_common.models.mobilenet_v2:build",
    "transformer": "fedquilt_common.models.transformer:build",
    "tabular": "fedquilt_common.models.tabular:build",
    "time-series": "fedquilt_common.models.time_series:build",
    "image-cnn": "fedquilt_common.models.image_cnn:build",
    "hars": "fedquilt_common.models.tabular:hars",
    "harb": "fedquilt_common.models.time_series:harb",
    "aep-mlp": "fedquilt_common.models.aep_mlp:build",
    "wisdm-lstm": "fedquilt_common.models.wisdm_lstm:build",
    "resnet18-gn": "fedquilt_common.models.resnet18_gn:build",
    "casas-bilstm": "fedquilt_common.models.casas_bilstm:build",
    "epic-resnet18": "fedquilt_common.models.epic_resnet18:build",
    "yolov8n": "fedquilt_common.models.yolov8n:build",
}
DIAGNOSTIC_MODELS: dict[str, str] = {"ballast": "fedquilt_common.models.ballast:ballast"}
"""Arrays for ``fedquilt bench``, made without torch; they cannot be trained."""
_GIVEN = ("input_shape", "classes")


def build_model(
    name: str,
    params: Mapping[str, Any],
    input_shape: tuple[int, ...],
    classes: int,
    allowed: Collection[str] = (),
    initialisation: str = "torch",
) -> Callable[[], nn.Module]:
    """Return a function that builds the model, a new one each time.

    Args:
        name: of ``MODELS``, or a user's own ``package:factory``, which is called as
            ``factory(input_shape=..., classes=..., **params)``.
        params: the model's parameters.
        input_shape: shape of one sample.
        classes: number of classes; 0 for regression.
        allowed: packages from which a user's own factory may come.
        initialisation: of the layers' numbers: ``torch`` leaves those of the factory, ``keras`` draws Keras's.

    Returns:
        The function; it raises ExperimentError if the model cannot be built with these values.

    Raises:
        UnknownNameError: there is no model of this name.
        ForbiddenImportError: the factory's package is not allowed.
        ExperimentError: the model does not take a parameter, or requires one that is missing.
    """
    factory = resolve(name, MODELS, "model", allowed)
    _check_params(name, factory, params)

    def make() -> nn.Module:
        module = _build(name, factory, {**params, "input_shape": input_shape, "classes": classes})
        return _initialise_as_keras(module) if initialisation == "keras" else module

    return make


def advise_against_batch_norm(name: str, key: str = "model") -> str:
    """Return advice, as a sentence without its full stop, where a model may not have batch norm.

    Args:
        name: of the model.
        key: of the experiment file that names the model.
    """
    if has_param(name, "norm"):
        return f"Set {key}.norm to group, as in model: {{name: {name}, norm: group}}"
    return "Choose a model without such norms, such as image-cnn"


_NORM_LAYERS: Final = {
    "static": "fedquilt.StaticBatchNorm",
    "batch": "nn.BatchNorm2d",
    "group": "nn.GroupNorm",
}


def warn_about_running_norm(name: str, norm: str, *, measures_norms: bool = True) -> str:
    """Return the warning that a model's batch norm does not suit sub-models.

    Args:
        name: of the model.
        norm: class of the norm.
        measures_norms: the algorithm measures the statistics of static norms.
    """
    other = "static" if measures_norms else "group"
    return (
        f"model.name = {name}: its {norm} averages statistics of sub-models of different widths, which fit none of "
        f"them, so accuracy may be lower than with {other} norms; {_advise_norms(name, 'model', other)} "
        "(docs/slicing.md)"
    )


def warn_about_static_norm(name: str, algorithm: str, key: str, *, averages_sub_models: bool) -> str:
    """Return the warning that nothing measures the statistics of a model's static batch norms.

    Args:
        name: of the model.
        algorithm: name of the algorithm.
        key: of the experiment file that names the model.
        averages_sub_models: the algorithm averages sub-models, which running averages do not suit either.
    """
    others = ["group"] if averages_sub_models else ["batch", "group"]
    return (
        f"{key}.name = {name}: '{algorithm}' never measures the statistics of its StaticBatchNorm, so evaluations "
        "normalise by the batches of test samples, and scores depend on the samples' order; "
        f"{_advise_norms(name, key, *others)} (docs/slicing.md)"
    )


def _advise_norms(name: str, key: str, *norms: str) -> str:
    """Return how a model gets one of these norms; arguments as ``warn_about_static_norm``."""
    if has_param(name, "norm"):
        return f"set {key}.norm to {' or '.join(norms)}, as in model: {{name: {name}, norm: {norms[0]}}}"
    return f"use {' or '.join(_NORM_LAYERS[norm] for norm in norms)} in its place"


def has_param(name: str, key: str) -> bool:
    """Whether one of our models has the parameter ``key``; False for a user's own."""
    return name in MODELS and key in inspect.signature(resolve(name, MODELS, "model")).parameters


def _check_params(name: str, factory: Callable[..., Any], params: Mapping[str, Any]) -> None:
    accepted, takes_any = find_parameters(factory)
    known = [key for key in accepted if key not in _GIVEN]
    for key in params:
        if key in _GIVEN or (key not in known and not takes_any):
            advice = suggest(key, known) if known else "it has none; remove it"
            raise ExperimentError(f"model.{key}: the model '{name}' has no such parameter; {advice}")
    _check_required(name, accepted, known, params)


def _check_required(
    name: str, accepted: Mapping[str, inspect.Parameter], known: Collection[str], params: Mapping[str, Any]
) -> None:
    for key in known:
        if accepted[key].default is inspect.Parameter.empty and key not in params:
            raise ExperimentError(f"model.{key}: the model '{name}' needs this parameter; add it")


def _initialise_as_keras(module: nn.Module) -> nn.Module:
    from fedquilt_common.models.keras_initialisation import initialise_as_keras

    return initialise_as_keras(module)


def _build(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> nn.Module:
    from torch import nn

    try:
        module = factory(**arguments)
    except FedquiltError:
        raise
    except USER_ERRORS as error:
        if isinstance(error, SystemExit):
            raise ExperimentError(
                f"model '{name}': its factory {describe_sys_exit(error, package_of(name))}"
            ) from error
        raise ExperimentError(
            f"model: '{name}' cannot be built with {dict(arguments)}: {describe_error(error)}; "
            "correct its parameters, or choose another model for this data set"
        ) from error
    if not isinstance(module, nn.Module):
        raise ExperimentError(f"model: '{name}' returned a {type(module).__name__}; it must return a torch.nn.Module")
    _check_state(name, module)
    return module


def _check_state(name: str, module: nn.Module) -> None:
    from torch import Tensor
    from torch.nn.parameter import is_lazy

    for key, array in module.state_dict(keep_vars=True).items():
        if not isinstance(array, Tensor):
            raise ExperimentError(
                f"model: '{name}': {key} of its state is a {type(array).__name__}, but only arrays travel; remove "
                "get_extra_state, or keep what it returns in a buffer"
            )
        if is_lazy(array):
            raise ExperimentError(f"model: '{name}': {key} of a lazy layer has no shape; give the layer its input size")
