"""Models by name, one file each. Importing this package does not import torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from fedquilt_common.errors import ExperimentError, FedquiltError
from fedquilt_common.user_imports import resolve, suggest

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
}
DIAGNOSTIC_MODELS: dict[str, str] = {"ballast": "fedquilt_common.models.ballast:ballast"}
"""Not models: arrays for ``fedquilt bench``, made without torch."""
_GIVEN = ("input_shape", "classes")


def build_model(
    name: str,
    params: Mapping[str, Any],
    input_shape: tuple[int, ...],
    classes: int,
    allowed: Collection[str] = (),
) -> Callable[[], nn.Module]:
    """A function that builds the model anew each time, for samples of ``input_shape``; ``classes`` is 0 for
    regression.

    A user's own ``package:factory`` is called as ``factory(input_shape=..., classes=..., **params)`` if its
    package is in ``allowed``. Raises UnknownNameError, ForbiddenImportError, and ExperimentError for
    parameters that the model does not take; the returned function raises ExperimentError for values with
    which it cannot be built.
    """
    factory = resolve(name, MODELS, "model", allowed)
    _check_params(name, factory, params)

    def make() -> nn.Module:
        return _make(name, factory, {**params, "input_shape": input_shape, "classes": classes})

    return make


def _check_params(name: str, factory: Callable[..., Any], params: Mapping[str, Any]) -> None:
    try:
        accepted = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return  # some factories written in C do not say what they take; calling them will
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [key for key, parameter in accepted.items() if parameter.kind in keyword and key not in _GIVEN]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
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


def _make(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> nn.Module:
    from torch import nn

    try:
        module = factory(**arguments)
    except FedquiltError:
        raise
    except Exception as error:
        # A user's factory can raise anything at all.
        raise ExperimentError(
            f"model: '{name}' cannot be built with {dict(arguments)}: {type(error).__name__}: {error}; "
            "correct its parameters, or choose another model for this data set"
        ) from error
    if not isinstance(module, nn.Module):
        raise ExperimentError(f"model: '{name}' gave a {type(module).__name__}; it must give a torch.nn.Module")
    return module
