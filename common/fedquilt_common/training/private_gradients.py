"""The gradients of DP-SGD, by Opacus: each sample's gradient is clipped, and noise is added to their sum.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, algorithm 1. The sum is divided by the expected size
of a batch. Opacus computes the gradients of all samples of a batch at once.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError, PackageMissingError
from fedquilt_common.models.norms import find_batch_norm
from fedquilt_common.privacy.accountant import MISSING
from fedquilt_common.privacy.meter import PrivateSteps

try:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from opacus.validators import ModuleValidator
except ImportError:
    raise PackageMissingError(MISSING) from None


class _SecretNoiseOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus's optimiser, with noise from the board's generator instead of torch's, whose seed has 32 bits only."""

    def __init__(self, parameters: Sequence[nn.Parameter], steps: PrivateSteps) -> None:
        super().__init__(
            torch.optim.SGD(parameters, lr=0.0),  # it only holds the parameters; the caller takes the steps
            noise_multiplier=steps.noise,
            max_grad_norm=steps.clip,
            expected_batch_size=steps.expected_batch,
        )
        self._secret = steps.generator

    def add_noise(self) -> None:
        """Add Gaussian noise of standard deviation noise x clip to each entry of the sums."""
        for parameter in self.params:
            drawn = np.asarray(self._secret.standard_normal(tuple(parameter.shape)))
            noise = torch.from_numpy(drawn * self.noise_multiplier * self.max_grad_norm).to(parameter.device)
            parameter.grad = (parameter.summed_grad.double() + noise).to(parameter.dtype)


class PrivateGradients:
    """Computes the private gradients of a module's parameters.

    Args:
        module: made by ``make_private``, in training mode.
        parameters: those that the training changes.
        steps: clipping and noise.
    """

    def __init__(self, module: nn.Module, parameters: Sequence[nn.Parameter], steps: PrivateSteps) -> None:
        self.steps = steps
        self._parameters = list(parameters)
        self._hooks = GradSampleModule(module, loss_reduction="mean")
        self._used = self._parameters

    def differentiate(self, loss: Tensor | None, penalty: Tensor | None, samples: int) -> None:
        """Set ``grad`` of the parameters to the private gradient of one step.

        Parameters that the loss does not depend on have no gradient.

        Args:
            loss: the mean over the samples that the step has drawn, of shape (); None: it has drawn none.
            penalty: of shape (); it does not depend on samples, so it needs no noise.
            samples: number of samples that the step has drawn.

        Raises:
            ExperimentError: the gradient of a single sample cannot be told from those of the others.
        """
        for parameter in self._parameters:
            parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]
        if loss is not None:
            with _ignore_hook_warning():
                loss.backward()  # type: ignore[no-untyped-call]
            self._used = [p for p in self._parameters if p.grad is not None]
            _check_rows(self._used, samples)
        optimizer = _SecretNoiseOptimizer(self._used, self.steps)
        if loss is None:
            for parameter in optimizer.params:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        optimizer.pre_step()
        for parameter in optimizer.params:
            parameter.grad_sample = parameter.summed_grad = None
        if penalty is not None:
            _add_gradient(penalty, self._parameters)

    def draw_batches(self, samples: int) -> Iterator[NDArray[np.int64]]:
        """Yield the positions of each step's samples in an epoch, int64 of shape (k,); each is equally likely to be in.

        Args:
            samples: number of samples to draw from.
        """
        for _ in range(self.steps.steps):
            yield np.flatnonzero(self.steps.generator.random(samples) < self.steps.rate)

    def close(self) -> None:
        """Remove the hooks and gradients of single samples from the module."""
        self._hooks.remove_hooks()
        for parameter in self._parameters:
            for name in ("grad_sample", "summed_grad"):
                if hasattr(parameter, name):
                    delattr(parameter, name)


def make_private(module: nn.Module) -> nn.Module:
    """Return a module that Opacus can differentiate sample by sample, with the same names, numbers and outputs.

    Args:
        module: any module; recurrent layers are replaced by Opacus's own.

    Raises:
        ExperimentError: the module mixes the samples of a batch.
    """
    if norm := find_batch_norm(module):
        raise ExperimentError(
            f"the model has {norm}, which mixes the samples of a batch, so the gradient of one sample cannot be "
            "bounded: set model.norm to group if it has this parameter, or choose a model without batch norm, such as "
            "image-cnn"
        )
    fixed: nn.Module = ModuleValidator.fix(module) if ModuleValidator.validate(module, strict=False) else module
    problems = [*ModuleValidator.validate(fixed, strict=False), *GradSampleModule.validate(fixed, strict=False)]
    if problems:
        raise ExperimentError(f"the model cannot be trained with `privacy`: {problems[0]}; choose another model")
    return fixed.train(module.training)


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
    """Opacus's hooks are on all layers, also on the first, whose input needs no gradient; torch warns about that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield
