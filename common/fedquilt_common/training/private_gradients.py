"""The gradients of DP-SGD, by Opacus: each sample's gradient is clipped, and noise is added to their sum.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, algorithm 1. The sum is divided by the expected size
of a batch. Opacus computes the gradients of all samples of a batch at once.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError, PackageMissingError
from fedquilt_common.models.norms import find_mixing_norm
from fedquilt_common.privacy.accountant import MISSING
from fedquilt_common.privacy.meter import PrivateSteps
from fedquilt_common.privacy.sample_batches import samples_at_once

try:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from opacus.validators import ModuleValidator
except ImportError:
    raise PackageMissingError(MISSING) from None


class _SecretNoiseOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus's optimiser, with noise from the board's generator instead of torch's, whose seed has 32 bits only."""

    def __init__(self, parameters: Sequence[nn.Parameter], steps: PrivateSteps) -> None:
        # The caller takes the steps, so this only holds the parameters. An optimiser of torch would load its compiler.
        super().__init__(
            SimpleNamespace(param_groups=[{"params": list(parameters)}]),
            noise_multiplier=steps.noise,
            max_grad_norm=steps.clip,
            expected_batch_size=steps.expected_batch,
        )
        self._secret = steps.generator

    def add_noise(self) -> None:
        """Add Gaussian noise of standard deviation noise x clip to each entry of the sums."""
        for parameter in self.params:
            drawn = np.asarray(self._secret.standard_normal(tuple(parameter.shape)))
            drawn *= self.noise_multiplier
            drawn *= self.max_grad_norm
            noisy = torch.from_numpy(drawn).to(parameter.device).add_(parameter.summed_grad)
            parameter.grad = noisy.to(parameter.dtype)

    def scale_grad(self) -> None:
        """Divide the noisy sums by the expected number of samples."""
        for parameter in self.params:
            parameter.grad /= self.expected_batch_size


def _keep_rows(compute: Callable[..., dict[nn.Parameter, Tensor]]) -> Callable[..., dict[nn.Parameter, Tensor]]:
    """Make a sampler of Opacus hand over its gradients. Opacus copies them into zeros, which takes twice the memory."""

    def compute_rows(layer: Any, *given: Any) -> dict[nn.Parameter, Tensor]:
        rest: dict[nn.Parameter, Tensor] = {}
        for parameter, rows in compute(layer, *given).items():
            is_first = parameter.requires_grad and not hasattr(parameter, "_current_grad_sample")
            if is_first and len(rows) == layer.max_batch_len:
                parameter._current_grad_sample = rows  # type: ignore[attr-defined]
            else:
                rest[parameter] = rows
        return rest

    return compute_rows


class _RowHooks(GradSampleModule):  # type: ignore[misc]
    """Opacus's hooks, which compute the gradient of each sample in the backward pass; without its copies."""

    GRAD_SAMPLERS: ClassVar[dict[type, Any]] = {
        kind: _keep_rows(compute) for kind, compute in GradSampleModule.GRAD_SAMPLERS.items()
    }


class PrivateGradients:
    """Computes the private gradients of a module's parameters.

    Used as a context manager around steps: a step calls ``add`` for each part of its samples, then ``finish``. Only one
    object at a time may be in use for a module.

    Args:
        module: made by ``make_private``, in training mode.
        parameters: those that the training changes; while the object is in use, only they require gradients.
        steps: clipping and noise.
    """

    def __init__(self, module: nn.Module, parameters: Sequence[nn.Parameter], steps: PrivateSteps) -> None:
        self.steps = steps
        self._module = module
        self._parameters = list(parameters)
        self._hooks: _RowHooks | None = None
        self._used: list[nn.Parameter] = []
        self._sums: _SecretNoiseOptimizer | None = None

    def __enter__(self) -> None:
        self._hooks = _RowHooks(self._module, loss_reduction="mean")

    def __exit__(self, *_: object) -> None:
        """Remove the hooks and gradients of single samples from the module."""
        if self._hooks is not None:
            self._hooks.remove_hooks()
        for parameter in self._parameters:
            for name in ("grad_sample", "summed_grad"):
                if hasattr(parameter, name):
                    delattr(parameter, name)

    def divide(self, samples: int) -> list[slice]:
        """Return the parts in which a step computes the gradients of its samples, so that they fit into memory."""
        size = samples_at_once(sum(parameter.numel() for parameter in self._parameters))
        return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]

    def add(self, loss: Tensor, samples: int) -> None:
        """Add the clipped gradients of some of the step's samples to its sums.

        Args:
            loss: the mean over these samples, of shape ().
            samples: their number, 1 or more.

        Raises:
            ExperimentError: the gradient of a single sample cannot be separated from those of the others.
        """
        self._differentiate(loss)
        _check_rows(self._used, samples)
        if self._sums is None:
            self._sums = _SecretNoiseOptimizer(self._used, self.steps)
        self._sums.clip_and_accumulate()
        self._clear()

    def _differentiate(self, loss: Tensor) -> None:
        self._clear()
        with _ignore_hook_warning():
            loss.backward()  # type: ignore[no-untyped-call]
        self._used = [p for p in self._parameters if p.grad is not None]

    @property
    def knows_used(self) -> bool:
        """Whether a loss has shown which parameters it depends on."""
        return bool(self._used)

    def find_used(self, loss: Tensor) -> None:
        """Find the parameters that a loss depends on, for steps that draw no samples before the first that does.

        Only they may get noise then: the others would tell whether a sample was drawn.

        Args:
            loss: of shape (), of any sample; its gradient is not used.
        """
        self._differentiate(loss)
        self._clear()

    def finish(self, penalty: Tensor | None) -> None:
        """Set ``grad`` of the parameters to the private gradient of the step.

        Parameters that the loss does not depend on have no gradient.

        Args:
            penalty: of shape (); it does not depend on samples, so it needs no noise.
        """
        self._clear()
        sums = self._sums or _start_from_zero(self._used, self.steps)
        sums.add_noise()
        sums.scale_grad()
        for parameter in sums.params:
            parameter.summed_grad = None
        self._sums = None
        if penalty is not None:
            _add_gradient(penalty, self._parameters)

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]

    def draw_batches(self, samples: int) -> Iterator[NDArray[np.int64]]:
        """Yield the positions of each step's samples in an epoch, int64 of shape (k,).

        Each step draws each sample independently with the probability ``rate`` (Poisson sampling).

        Args:
            samples: number of samples to draw from.
        """
        for _ in range(self.steps.steps):
            yield np.flatnonzero(self.steps.generator.random(samples) < self.steps.rate)


def make_private(module: nn.Module) -> nn.Module:
    """Return a module that Opacus can differentiate sample by sample, with the same names, numbers and outputs.

    Args:
        module: any module; recurrent layers are replaced by Opacus's own.

    Raises:
        ExperimentError: the module mixes samples.
    """
    if norm := find_mixing_norm(module):
        raise ExperimentError(
            f"the model has {norm}, which mixes samples, so what it reveals of one sample cannot be bounded: set "
            "model.norm to group if it has this parameter, or choose a model without such norms, such as image-cnn"
        )
    fixed: nn.Module = ModuleValidator.fix(module) if ModuleValidator.validate(module, strict=False) else module
    problems = [*ModuleValidator.validate(fixed, strict=False), *GradSampleModule.validate(fixed, strict=False)]
    if problems:
        raise ExperimentError(f"the model cannot be trained with `privacy`: {problems[0]}; choose another model")
    return fixed.train(module.training)


def _start_from_zero(parameters: Sequence[nn.Parameter], steps: PrivateSteps) -> _SecretNoiseOptimizer:
    """Return the sums of a step that has drawn no samples."""
    sums = _SecretNoiseOptimizer(parameters, steps)
    for parameter in parameters:
        parameter.summed_grad = torch.zeros_like(parameter)  # type: ignore[attr-defined]
    return sums


def _check_rows(parameters: Sequence[nn.Parameter], samples: int) -> None:
    """Check that each parameter has one gradient for each sample; otherwise clipping would not bound a sample."""
    for parameter in parameters:
        found = getattr(parameter, "grad_sample", None)
        if not isinstance(found, Tensor) or len(found) != samples:
            raise ExperimentError(
                "the model cannot be trained with `privacy`: a layer mixes samples, is used in several ways or is not "
                "called as a layer, so that the gradient of one sample is unknown; choose another model"
            )


def _add_gradient(penalty: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    found = torch.autograd.grad(penalty, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, found, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


@contextlib.contextmanager
def _ignore_hook_warning() -> Iterator[Any]:
    """Opacus's hooks are on all layers, even on the first, whose input needs no gradient; torch warns about that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield
