"""Checks what an algorithm gives to a training: names of parameters, epochs, and what its losses return."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Final

from torch import Tensor, nn

from fedquilt_common.algorithm_api.array_types import shorten
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import Arrays

_NAMED: Final = 8
"""Most parameters that a message names."""


def check_only(only: object, arrays: Arrays, part: object) -> None:
    """Check the names of the parameters to train. Names of buffers and of frozen parameters are allowed.

    Args:
        only: should be a collection of names; None: all.
        arrays: those that training starts from, in the shapes of the model or of ``part``.
        part: what is trained of the model. With a sub-model, names of the whole model are allowed.

    Raises:
        ValueError: it is not a collection of names, or empty, or has a name that the model does not have.
    """
    if only is None:
        return
    known = dict.fromkeys([*arrays, *(part.anatomy.arrays if isinstance(part, Slice) else ())])
    if isinstance(only, str) or not isinstance(only, Collection):
        problem = f"is {shorten(only)}; give a collection of names, such as a list"
    elif not only:
        problem = "is empty, so nothing would be trained; name parameters, or leave it out to train all"
    elif unknown := [name for name in only if name not in known]:
        problem = f"has {unknown[0]!r}, which the model does not have; correct the name"
    else:
        return
    raise ValueError(f"only {problem}. The names are: {_list_names(known)}")


def pick_trained(parameters: Mapping[str, nn.Parameter], only: Collection[str] | None) -> dict[str, nn.Parameter]:
    """Return the parameters that a phase trains, by name and in the model's order.

    Args:
        parameters: those that the model does not freeze.
        only: names of some; None: all.

    Raises:
        ValueError: there are none.
    """
    trained = {name: parameter for name, parameter in parameters.items() if only is None or name in only}
    if trained:
        return trained
    if not parameters:
        raise ValueError("there is nothing to train: no parameter of the model requires a gradient (requires_grad)")
    raise ValueError(
        f"there is nothing to train: only has frozen parameters or buffers ({_list_names(only or ())}). The parameters "
        f"that can be trained are: {_list_names(parameters)}"
    )


def check_loss(value: object, function: Callable[..., Any]) -> None:
    """Check what a loss returned; ``function`` is the loss.

    Raises:
        ValueError: it is not a tensor with a single number, or has no gradient.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            f"the loss{_name(function)} returned {_describe(value)}; return a scalar tensor, such as a mean"
        )
    if not value.requires_grad:
        raise ValueError(
            f"the loss{_name(function)} has no gradient; compute the outputs and the loss with functions of torch, "
            "without detach(), and train parameters on which they depend"
        )


def check_penalty(value: object, function: Callable[..., Any]) -> None:
    """Check what a penalty returned; ``function`` is the penalty. A constant is allowed.

    Raises:
        ValueError: it is not a single number.
    """
    if value.numel() != 1 if isinstance(value, Tensor) else not isinstance(value, Real):
        raise ValueError(
            f"the penalty{_name(function)} returned {_describe(value)}; return a scalar tensor, such as a sum"
        )


def check_schedule(schedule: Sequence[int], phases: int) -> None:
    """Check the order of the epochs of a training.

    Args:
        schedule: the position of a phase for each epoch.
        phases: the number of phases.

    Raises:
        ValueError: there is no epoch, or a position that no phase has, such as -1, whose samples nobody would charge.
    """
    if not schedule:
        raise ValueError("schedule = []: a training has one epoch or more; without epochs, do not train")
    for position in schedule:
        if position not in range(phases):
            raise ValueError(f"schedule has {position}: its numbers are positions in the {phases} phases, from 0")


def _name(function: Callable[..., Any]) -> str:
    """Return a function's name after a space; empty if it is one of fedquilt, which is not the one to correct."""
    if str(getattr(function, "__module__", "")).startswith("fedquilt_"):
        return ""
    return f" '{getattr(function, '__qualname__', type(function).__qualname__)}'"


def _describe(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shorten(value)


def _list_names(names: Collection[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(list(names)[:_NAMED])}{more}"
