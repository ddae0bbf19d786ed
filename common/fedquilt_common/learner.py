"""The only torch training loop: stochastic gradient descent from given arrays to new ones.

The update is written out instead of taken from ``torch.optim``, which imports the compiler: 70 MB and most
of a second for every process of a board. ``tests/unit/common/test_learner.py`` holds it to the bits of
``torch.optim.SGD``.
"""

from __future__ import annotations

import contextlib
import functools
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

from fedquilt_common.anatomy.resize import cut_module
from fedquilt_common.errors import DataUnavailableError, PayloadError, TrainingDivergedError
from fedquilt_common.precision import Arithmetic, LossScale, arithmetic, refusing, widened
from fedquilt_common.scores import like, score_classes, score_values
from fedquilt_common.types import Arrays, Examples, Loss, Penalty, Progress, Trained

if TYPE_CHECKING:
    from fedquilt_common.anatomy.trace import Blueprint
    from fedquilt_common.experiment import Training
    from fedquilt_common.slicing import Slice

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
    """Parameters and buffers by name, halves as fp32; else the arrays are the module's own memory, not copies."""
    return {name: np.asarray(widened(t.detach()).cpu().numpy(), order="C") for name, t in module.state_dict().items()}


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
    scale: LossScale | None = None

    def step(self, loss: Tensor) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        (loss if self.scale is None else loss * self.scale.value).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            given = [(index, p, p.grad) for index, p in enumerate(self.parameters) if p.grad is not None]
            if self.scale is not None and not self.scale.unscale([gradient for _, _, gradient in given]):
                return
            for index, parameter, gradient in given:
                self._update(index, parameter, gradient)

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
    error). ``blueprint`` tells how sub-models are cut from the model; without it there are none.
    ``on_progress`` is told the part of the training that is done, from 0 to 1, after each step.
    """

    build: Callable[[], nn.Module]
    training: Training
    classes: int
    on_progress: Progress | None = None
    blueprint: Callable[[], Blueprint] | None = None

    def init(self, seed: int) -> dict[str, NDArray[Any]]:
        """Initial parameters and buffers; the same for the same ``seed``."""
        return to_arrays(self._fresh(seed))

    def train(
        self,
        arrays: Arrays,
        data: Examples,
        *,
        seed: int,
        penalty: Penalty | None = None,
        loss: Loss | None = None,
        part: Slice | None = None,
    ) -> Trained:
        """New arrays after ``training.epochs`` passes over ``data`` from ``arrays``, to the bit the same for
        the same input.

        ``arrays`` are those of the sub-model ``part`` if there is one. ``Trained.loss`` is the mean over the samples
        of the last epoch, without the penalty. Buffers keep their own dtype; halves come back as fp32. ``steps``
        counts those that amp leaves out for gradients that are not finite, too.
        Raises PayloadError for arrays of another model, DataUnavailableError for data that does not fit it,
        TrainingDivergedError for a loss that is not finite, UnsupportedPrecisionError for what this device cannot do.
        """
        started = time.perf_counter()
        self._check(data)
        how = arithmetic(self.training)
        module = how.place(self._loaded(arrays, seed, part))
        with _seeded(seed ^ _DROPOUT_STREAM):
            mean_loss, steps = self._descend(module, how, data, seed, penalty, loss or self._loss)
        _check_all_finite(module, steps, how)
        module.zero_grad()  # halves come back as fp32, which takes as much as the gradients did
        return Trained(to_arrays(module), mean_loss, time.perf_counter() - started, steps)

    def evaluate(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, float]:
        """``accuracy`` (0 to 1) or ``r2``, and the mean ``loss``, in fp32, of the deepest exit. Raises as ``train``."""
        self._check(data)
        module = self._loaded(arrays, 0, part).eval()
        with torch.inference_mode():
            outputs = [(_last(module(_features(data.x[p]))), self._targets(data.y[p])) for p in _parts(len(data))]
            return score_classes(outputs) if self.classes else score_values(outputs)

    def statistics(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, NDArray[Any]]:
        """Means and variances of the model's static batch norms, by name, after one pass over ``data`` (HeteroFL,
        section 3); what ``arrays`` hold of them does not matter.

        Empty for a model that has none. Raises as ``train``.
        """
        self._check(data)
        module = self._loaded(arrays, 0, part).eval()
        norms = {name: norm for name, norm in module.named_modules() if _collects(norm)}
        for norm in norms.values():
            _start_collecting(norm)
        with torch.inference_mode():
            for batch in _parts(len(data)) if norms else []:
                module(_features(data.x[batch]))
        found = to_arrays(module)
        names = [f"{name}.{kind}".lstrip(".") for name in norms for kind in ("running_mean", "running_var")]
        return {name: found[name] for name in names}

    def _fresh(self, seed: int) -> nn.Module:
        with _seeded(seed):
            return self.build()

    def _loaded(self, arrays: Arrays, seed: int, part: Slice | None) -> nn.Module:
        """The model, or the sub-model ``part`` of it, with the numbers of ``arrays``."""
        if part is None or part.is_full or self.blueprint is None:
            module = self._fresh(seed)
        else:
            module = cut_module(self.build, self.blueprint(), part)
        load_arrays(module, arrays)
        return module

    def _descend(
        self,
        module: nn.Module,
        how: Arithmetic,
        data: Examples,
        seed: int,
        penalty: Penalty | None,
        loss: Loss | Callable[[Any, Tensor], Tensor],
    ) -> tuple[float, int]:
        _set_mode(module, min(len(data), self.training.batch))
        now = dict(module.named_parameters())
        start = {name: p.detach().clone() for name, p in now.items()} if penalty else {}
        descent = _Descent(list(now.values()), {}, self.training, LossScale() if how.precision == "amp" else None)
        shuffler = torch.Generator().manual_seed(seed % _SEEDS)

        def goal(index: NDArray[np.int64], how: Arithmetic) -> tuple[Tensor, Tensor]:
            with how.autocast():
                output = module(how.inputs(_features(data.x[index])))
            value = loss(_outputs(output), self._targets(data.y[index]).to(how.device))
            return value, value if penalty is None else value + penalty(now, start)

        steps, losses = 0, list[tuple[float, int]]()
        for _ in range(self.training.epochs):
            order = torch.randperm(len(data), generator=shuffler).numpy()
            batches, losses = _batches(order, self.training, module), []
            for index in batches:
                steps += 1
                with refusing(module, how, functools.partial(goal, index)) if steps == 1 else contextlib.nullcontext():
                    value, whole = goal(index, how)
                    _check_finite(whole, steps, how)
                    descent.step(whole)
                losses.append((value.item(), len(index)))
                if self.on_progress:
                    self.on_progress(steps / (self.training.epochs * len(batches)))
        return sum(value * n for value, n in losses) / sum(n for _, n in losses), steps

    def _loss(self, output: Any, target: Tensor) -> Tensor:
        output = _last(output)
        if self.classes:
            return functional.cross_entropy(output, target)
        return functional.mse_loss(like(output, target), target)

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


def _collects(module: nn.Module) -> bool:
    return hasattr(module, "collecting") and isinstance(getattr(module, "running_mean", None), Tensor)


def _start_collecting(norm: Any) -> None:
    norm.collecting = norm.training = True
    norm.num_batches_tracked.zero_()
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0)


def _parts(count: int) -> list[slice]:
    return [slice(start, start + EVALUATION_BATCH) for start in range(0, count, EVALUATION_BATCH)]


def _last(output: Any) -> Tensor:
    """The deepest exit of a model with several."""
    found: Tensor = output[-1] if isinstance(output, list | tuple) else output
    return found


def _outputs(output: Any) -> Any:
    """As a loss gets them: in fp32, whatever the model computes in; several exits as a list."""
    return [widened(o) for o in output] if isinstance(output, list | tuple) else widened(output)


def _features(x: NDArray[Any]) -> Tensor:
    # A copy where x is read-only, since torch warns about those; indexed batches are copies already.
    batch = x if x.flags.writeable else x.copy()
    return torch.from_numpy(batch if batch.dtype.kind != "f" else batch.astype(np.float32, copy=False))


def _has_norm(module: nn.Module) -> bool:
    return any(isinstance(part, _BatchNorm) for part in module.modules())


def _batches(order: NDArray[Any], training: Training, module: nn.Module) -> list[NDArray[Any]]:
    """``order`` in batches; a last one that is not full is left out with ``drop_last``, and if batch norm would have
    to do with one sample."""
    size = training.batch
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    if len(batches) > 1 and len(batches[-1]) < size and (
        training.drop_last or (len(batches[-1]) == 1 and _has_norm(module))
    ):  # fmt: skip
        batches.pop()
    return batches


def _set_mode(module: nn.Module, batch: int) -> None:
    module.train()
    if batch == 1:  # batch norm has no statistics of one sample, so it uses those it has
        for part in module.modules():
            if isinstance(part, _BatchNorm):
                part.eval()


def _check_finite(loss: Tensor, step: int, how: Arithmetic) -> None:
    if not math.isfinite(loss.item()):
        raise TrainingDivergedError(f"the loss became {loss.item()} in step {step}; {_advice(how)}")


def _check_all_finite(module: nn.Module, steps: int, how: Arithmetic) -> None:
    """The last step can overflow where every loss before it was finite."""
    for name, tensor in module.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise TrainingDivergedError(f"'{name}' is not finite after {steps} steps; {_advice(how)}")


def _advice(how: Arithmetic) -> str:
    return _DIVERGED + ("; fp16 ends at 65504, fp32 and bf16 do not" if how.precision in ("fp16", "amp") else "")
