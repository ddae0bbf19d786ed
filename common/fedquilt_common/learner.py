"""The only torch training loop: stochastic gradient descent from given arrays to new ones.

The update is written out instead of taken from ``torch.optim``, which imports the compiler: 70 MB and most
of a second for every process of a board. ``tests/unit/common/test_learner.py`` holds it to the bits of
``torch.optim.SGD``.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from fedquilt_common.errors import DataUnavailableError, PayloadError, TrainingDivergedError
from fedquilt_common.types import Arrays, Examples, Penalty, Progress, Trained

if TYPE_CHECKING:
    from fedquilt_common.experiment import Training

EVALUATION_BATCH = 512
_SEEDS = 1 << 63
# Shuffling and dropout draw from two streams, which must not be one and the same.
_DROPOUT_STREAM = 0x5DEECE66D
_DIVERGED = "try a smaller training.lr, or look for values in the data that are not finite"


def set_up_torch(threads: int = 1) -> None:
    """Make torch reproducible: a fixed number of threads, and an error for operations that are not deterministic.

    Sums are split over the threads, so another number of threads gives other bits.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    # Says the same as use_deterministic_algorithms(True), which imports the compiler as a side effect.
    torch.set_deterministic_debug_mode("error")


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's global generator starts from ``seed`` inside, and is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % _SEEDS)
        yield


def to_arrays(module: nn.Module) -> dict[str, NDArray[Any]]:
    """Parameters and buffers by name; the arrays are the module's own memory, not copies."""
    return {name: np.asarray(t.detach().numpy(), order="C") for name, t in module.state_dict().items()}


def load_arrays(module: nn.Module, arrays: Arrays) -> None:
    """Copy ``arrays`` into the module's parameters and buffers.

    Raises PayloadError unless names, shapes and kinds of number are those of the module.
    """
    state = module.state_dict()
    if state.keys() != arrays.keys():
        missing, foreign = sorted(state.keys() - arrays.keys()), sorted(arrays.keys() - state.keys())
        raise PayloadError(
            f"arrays are not those of the model: missing {missing[:5]}, foreign {foreign[:5]}; "
            "both sides must build the same model"
        )
    for name, tensor in state.items():
        _copy_into(tensor, np.asarray(arrays[name]), name)


def _copy_into(tensor: Tensor, array: NDArray[Any], name: str) -> None:
    if array.shape != tuple(tensor.shape) or array.dtype.kind not in "biuf":
        raise PayloadError(
            f"array '{name}' is {array.dtype} of shape {array.shape} where the model has {tensor.dtype} of "
            f"shape {tuple(tensor.shape)}; both sides must build the same model"
        )
    # Through numpy, because torch warns about arrays that are read-only, as memory maps are.
    np.copyto(tensor.detach().numpy(), array, casting="unsafe")


@dataclass(frozen=True)
class _Descent:
    """Gradient descent with momentum and weight decay in the order of operations of ``torch.optim.SGD``."""

    parameters: list[nn.Parameter]
    momenta: dict[int, Tensor]
    training: Training

    def step(self, loss: Tensor) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters):
                if parameter.grad is not None:
                    self._update(index, parameter, parameter.grad)

    def _update(self, index: int, parameter: nn.Parameter, gradient: Tensor) -> None:
        if self.training.weight_decay:
            gradient = gradient.add(parameter, alpha=self.training.weight_decay)
        if self.training.momentum:
            gradient = self._with_momentum(index, gradient)
        parameter.add_(gradient, alpha=-self.training.lr)

    def _with_momentum(self, index: int, gradient: Tensor) -> Tensor:
        if index not in self.momenta:
            self.momenta[index] = gradient.clone()
            return self.momenta[index]
        return self.momenta[index].mul_(self.training.momentum).add_(gradient)


@dataclass(frozen=True)
class TorchLearner:
    """Trains and evaluates the model that ``build`` makes; a ``Learner``.

    ``training`` is the experiment's section of that name; ``classes`` is 0 for regression (mean squared
    error).
    ``on_progress`` is told the part of the training that is done, from 0 to 1, after each step.
    """

    build: Callable[[], nn.Module]
    training: Training
    classes: int
    on_progress: Progress | None = None

    def init(self, seed: int) -> dict[str, NDArray[Any]]:
        """Initial parameters and buffers; the same for the same ``seed``."""
        return to_arrays(self._fresh(seed))

    def train(self, arrays: Arrays, data: Examples, *, seed: int, penalty: Penalty | None = None) -> Trained:
        """New arrays after ``training.epochs`` passes over ``data`` from ``arrays``, to the bit the same for
        the same input.

        ``loss`` is the mean over the samples of the last epoch, without the penalty. Buffers keep their own
        dtype.
        Raises PayloadError for arrays of another model, DataUnavailableError for data that does not fit it,
        TrainingDivergedError for a loss that is not finite.
        """
        started = time.perf_counter()
        self._check(data)
        module = self._fresh(seed)
        load_arrays(module, arrays)
        with _seeded(seed ^ _DROPOUT_STREAM):
            loss, steps = self._descend(module, data, seed, penalty)
        _check_all_finite(module, steps)
        return Trained(to_arrays(module), loss, time.perf_counter() - started, steps)

    def evaluate(self, arrays: Arrays, data: Examples) -> dict[str, float]:
        """``accuracy`` (0 to 1) or ``r2``, and the mean ``loss``. Raises as ``train`` does."""
        self._check(data)
        module = self._fresh(0).eval()
        load_arrays(module, arrays)
        parts = [slice(start, start + EVALUATION_BATCH) for start in range(0, len(data), EVALUATION_BATCH)]
        with torch.inference_mode():
            outputs = [(module(_features(data.x[part])), self._targets(data.y[part])) for part in parts]
            return _score_classes(outputs) if self.classes else _score_values(outputs)

    def _fresh(self, seed: int) -> nn.Module:
        with _seeded(seed):
            return self.build()

    def _descend(self, module: nn.Module, data: Examples, seed: int, penalty: Penalty | None) -> tuple[float, int]:
        _set_mode(module, min(len(data), self.training.batch))
        now = dict(module.named_parameters())
        start = {name: p.detach().clone() for name, p in now.items()} if penalty else {}
        descent = _Descent(list(now.values()), {}, self.training)
        shuffler = torch.Generator().manual_seed(seed % _SEEDS)
        steps, total = (
            0,
            self.training.epochs * len(_batches(np.arange(len(data)), self.training.batch, module)),
        )
        losses: list[tuple[float, int]] = []
        for _ in range(self.training.epochs):
            losses = []
            order = torch.randperm(len(data), generator=shuffler).numpy()
            for index in _batches(order, self.training.batch, module):
                loss = self._loss(module, data, index)
                goal = loss if penalty is None else loss + penalty(now, start)
                steps += 1
                _check_finite(goal, steps)
                descent.step(goal)
                losses.append((loss.item(), len(index)))
                if self.on_progress:
                    self.on_progress(steps / total)
        return sum(loss * n for loss, n in losses) / sum(n for _, n in losses), steps

    def _loss(self, module: nn.Module, data: Examples, index: NDArray[np.int64]) -> Tensor:
        output, target = module(_features(data.x[index])), self._targets(data.y[index])
        if self.classes:
            return functional.cross_entropy(output, target)
        return functional.mse_loss(_like(output, target), target)

    def _targets(self, y: NDArray[Any]) -> Tensor:
        if self.classes:
            return torch.from_numpy(y.astype(np.int64))
        return torch.from_numpy(y.astype(np.float32).reshape(len(y), -1))

    def _check(self, data: Examples) -> None:
        if len(data) == 0:
            raise DataUnavailableError(
                "there are no samples to learn from or to evaluate on; give each client at least one"
            )
        if len(data.x) != len(data.y):
            raise DataUnavailableError(f"{len(data.x)} samples have {len(data.y)} labels; repair the data set")
        if self.classes and not (data.y.min() >= 0 and data.y.max() < self.classes):
            raise DataUnavailableError(
                f"labels reach from {data.y.min()} to {data.y.max()} where there are {self.classes} classes; "
                "they must count from 0"
            )


def _features(x: NDArray[Any]) -> Tensor:
    # A copy where x is read-only, since torch warns about those; indexed batches are copies already.
    batch = x if x.flags.writeable else x.copy()
    return torch.from_numpy(batch if batch.dtype.kind != "f" else batch.astype(np.float32, copy=False))


def _has_norm(module: nn.Module) -> bool:
    return any(isinstance(part, _BatchNorm) for part in module.modules())


def _batches(order: NDArray[Any], size: int, module: nn.Module) -> list[NDArray[Any]]:
    """``order`` in pieces of ``size``, without a last piece of one sample if there is batch norm."""
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    if len(batches) > 1 and size > 1 and len(batches[-1]) == 1 and _has_norm(module):
        batches.pop()
    return batches


def _set_mode(module: nn.Module, batch: int) -> None:
    module.train()
    if batch == 1:  # batch norm has no statistics of one sample, so it uses those it has
        for part in module.modules():
            if isinstance(part, _BatchNorm):
                part.eval()


def _check_finite(loss: Tensor, step: int) -> None:
    if not math.isfinite(loss.item()):
        raise TrainingDivergedError(f"the loss became {loss.item()} in step {step}; {_DIVERGED}")


def _check_all_finite(module: nn.Module, steps: int) -> None:
    """The last step can overflow where every loss before it was finite."""
    for name, tensor in module.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise TrainingDivergedError(f"'{name}' is not finite after {steps} steps; {_DIVERGED}")


def _like(output: Tensor, target: Tensor) -> Tensor:
    output = output.reshape(len(output), -1)
    if output.shape != target.shape:
        raise DataUnavailableError(
            f"the model gives {output.shape[1]} values a sample where the data set has {target.shape[1]}; "
            "choose a model with as many outputs"
        )
    return output


def _score_classes(outputs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    count = sum(len(target) for _, target in outputs)
    right = sum(int((output.argmax(dim=1) == target).sum()) for output, target in outputs)
    loss = sum(float(functional.cross_entropy(o.double(), t, reduction="sum")) for o, t in outputs)
    return {"accuracy": right / count, "loss": loss / count}


def _score_values(outputs: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """R2 is the mean over the outputs; one that never changes counts as 0: there is nothing to explain."""
    target = torch.cat([t for _, t in outputs]).double()
    error = (torch.cat([_like(o, t) for o, t in outputs]).double() - target).square()
    spread = (target - target.mean(dim=0)).square().sum(dim=0)
    r2 = torch.where(spread > 0, 1 - error.sum(dim=0) / spread.clamp_min(1e-300), torch.zeros_like(spread))
    return {"r2": float(r2.mean()), "loss": float(error.mean())}
