"""The form of a model's outputs, which must be the same in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.plurals import counted
from fedquilt_common.tracing.layer_kinds import is_known
from fedquilt_common.user_imports import describe_sys_exit

OutputForm = tuple[tuple[int, ...], ...]
"""Shape of each output without its first dimension, which runs over the samples."""
SAMPLES: Final = 2
"""Samples of an example; a single one could not be distinguished from a dimension that is broadcast."""
_SEVERAL: Final = 2
_TRIES: Final = 10
"""Passes that look for parameters that training leaves out: it may leave layers out at random."""
_REASON: Final = (
    "the last output is trained and evaluated, so the model would learn with another output than the one that is "
    "evaluated. Return the same outputs in both modes, such as the logits alone (build torchvision's models with "
    "aux_logits=False), or "
)
_GIVE_LOSS: Final = f"{_REASON}give the model a method training_loss(outputs, targets) (docs/tasks.md)"
_USE_LOSS: Final = (
    "here the algorithm has a loss of its own in the place of the model's training_loss, and for it "
    f"{_REASON}choose an algorithm that trains with the model's loss, such as fedavg (docs/tasks.md)"
)


def example_batch(x: NDArray[Any], samples: int = SAMPLES) -> Tensor:
    """Return some samples in the shape and dtype of ``x``, shape (n, *input_shape); the same on every machine."""
    shape = (samples, *x.shape[1:])
    if x.dtype.kind != "f":
        return torch.zeros(shape, dtype=torch.int64)
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def form_of(output: Any) -> OutputForm:
    """Return the form of what a model returns.

    Raises:
        ExperimentError: it is neither a tensor nor a list or tuple of tensors.
    """
    return tuple(_shapes(output))


def _shapes(output: Any) -> Iterator[tuple[int, ...]]:
    outputs = output if isinstance(output, list | tuple) else [output]
    if not outputs:
        raise ExperimentError("the model returns no outputs; return one tensor, or a list or tuple of tensors")
    for item in outputs:
        if not isinstance(item, Tensor):
            within = "" if item is output else f" with {_name(item)} in it"
            raise ExperimentError(
                f"the model returns {_name(output)}{within}; return one tensor, or a list or tuple of tensors"
            )
        yield tuple(item.shape[1:])


def _name(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def check_same_form(trained: OutputForm, evaluated: OutputForm, *, own_loss: bool = False) -> None:
    """Compare the forms of a model's outputs in training and in evaluation.

    Args:
        trained: the form in training.
        evaluated: the form in evaluation.
        own_loss: whether the model has a loss of its own, which an algorithm has replaced.

    Raises:
        ExperimentError: they differ.
    """
    if trained != evaluated:
        raise ExperimentError(
            f"the model returns {_describe(trained)} in training, but {_describe(evaluated)} in evaluation: "
            f"{_USE_LOSS if own_loss else _GIVE_LOSS}"
        )


def _describe(form: OutputForm) -> str:
    shapes = ", ".join(str(shape).replace(",)", ")") for shape in form)
    return f"{counted(len(form), 'output')} of shape {shapes}"


@dataclass(frozen=True)
class ModelOutputs:
    """What a model returns, and how it trains.

    Attributes:
        evaluated: the shape of each output in evaluation, without the samples.
        own_loss: whether it trains with a method ``training_loss``, which takes outputs in any form.
    """

    evaluated: OutputForm
    own_loss: bool


def check_outputs(build: Callable[[], nn.Module], x: NDArray[Any], name: str) -> ModelOutputs:
    """Run a new model on two samples in both modes, and compare its outputs. A loss of its own explains differences.

    Args:
        build: makes the model.
        x: samples of shape (n, *input_shape); their numbers do not matter.
        name: of the model, for errors.

    Raises:
        ExperimentError: its outputs differ in form or are not tensors, or it does not run on such samples.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = build()
        own_loss = hasattr(module, "training_loss")
        try:
            trained = None if own_loss else form_of(_run(module.train(), x))
            evaluated = form_of(_run(module.eval(), x))
            if trained is not None:
                check_same_form(trained, evaluated)
            return ModelOutputs(evaluated, own_loss)
        except ExperimentError as error:
            raise ExperimentError(f"{name}: {error}") from error


def warn_about_outputs(build: Callable[[], nn.Module], x: NDArray[Any], name: str) -> str:
    """Return that another output is trained or evaluated than its user may expect; empty if a model has its own loss.

    It is the last field of a named tuple, or one that depends on parameters which training leaves out.

    Args:
        build: makes the model.
        x: samples of shape (n, *input_shape); their numbers do not matter.
        name: of the model, for the warning.

    Raises:
        ExperimentError: it does not run on such samples.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = build().eval()
        if is_known(module) or hasattr(module, "training_loss"):
            return ""
        fields: tuple[str, ...] = getattr(_run(module, x), "_fields", ())
    if len(fields) >= _SEVERAL:
        return (
            f"{name}: the model returns a named tuple ({', '.join(fields)}), whose last output, {fields[-1]}, is "
            "trained and evaluated, as the deepest of several exits (docs/tasks.md). If that is not what you want, "
            "return the logits alone, or last"
        )
    untrained = sorted(find_untrained(module, x))
    more = f" and {len(untrained) - _SEVERAL} more" if len(untrained) > _SEVERAL else ""
    if not untrained:
        return ""
    return (
        f"{name}: evaluation uses {', '.join(untrained[:_SEVERAL])}{more}, which training leaves out: they keep their "
        "initial values, unless forward itself changes them, and the scores depend on them (docs/tasks.md). Let "
        "forward use the same layers in both modes"
    )


def find_untrained(module: nn.Module, x: NDArray[Any]) -> set[str]:
    """Return the names of the parameters to train that evaluation uses and training leaves out.

    Training may leave layers out at random, or choose them by the samples: several passes take other samples each.

    Args:
        module: a new model; it is in training mode afterwards.
        x: samples of shape (n, *input_shape); their numbers do not matter.

    Returns:
        The names; none if the model has no gradient that shows it.
    """
    with torch.random.fork_rng(devices=[]), suppress(Exception):
        torch.manual_seed(0)
        untrained = _used_parameters(module.eval(), x)
        for _ in range(_TRIES):
            if untrained:
                untrained -= _used_parameters(module.train(), x)
        return untrained
    return set()


def _used_parameters(module: nn.Module, x: NDArray[Any]) -> set[str]:
    """Return the names of the parameters that get a gradient: in training of all outputs, otherwise of the last one."""
    module.zero_grad()
    batch = example_batch(x)
    output = module(torch.randn_like(batch) if batch.is_floating_point() else batch)
    outputs = output if isinstance(output, list | tuple) else [output]
    sums = [one.float().sum() for one in (outputs if module.training else outputs[-1:]) if one.requires_grad]
    if sums:
        torch.autograd.backward(sums)
    return {name for name, parameter in module.named_parameters() if parameter.grad is not None}


@contextmanager
def refuse_exits() -> Iterator[None]:
    """Turn a ``sys.exit`` in a user's forward, which would end the program, into an error.

    Raises:
        ExperimentError: forward called ``sys.exit``; the text has file and line.
    """
    try:
        yield
    except SystemExit as error:
        raise ExperimentError(f"the model's forward {describe_sys_exit(error, '')}") from error


@refuse_exits()
def _run(module: nn.Module, x: NDArray[Any]) -> Any:
    try:
        return module(example_batch(x))
    except Exception as error:
        raise ExperimentError(
            f"the model does not run on samples of shape {tuple(x.shape[1:])}: {type(error).__name__}: {error}; "
            "correct its forward or its parameters, or choose another model for this data set"
        ) from error
