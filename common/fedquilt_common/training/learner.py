"""The only torch training loop: from given arrays to new ones, or to scores and outputs; ``descent`` has its steps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.nn import functional

from fedquilt_common.algorithm_api import Loss, Penalty, TrainingPhase, TrainingResult
from fedquilt_common.errors import DataUnavailableError, ExperimentError, PayloadError
from fedquilt_common.submodels.heads import Head, TwoHeads
from fedquilt_common.tracing.heads import TwoHeaded, head_module, heads_of, watch_features
from fedquilt_common.tracing.resize import cut_module
from fedquilt_common.tracing.trace import on_meta, traced
from fedquilt_common.training.metrics import like, score_classes, score_values
from fedquilt_common.training.precision import arithmetic, widened
from fedquilt_common.training.sgd_loop import SEEDS, Descent, check_all_finite, tensor
from fedquilt_common.types import Arrays, Examples, Progress

if TYPE_CHECKING:
    from fedquilt_common.algorithm_api import Part
    from fedquilt_common.experiment.sections import Training
    from fedquilt_common.submodels.slices import Slice
    from fedquilt_common.tracing.trace import Blueprint

EVALUATION_BATCH = 64
"""Small enough that what a layer gives stays in a processor's cache."""
STATISTICS_BATCH = 512
"""Norms weigh batches alike, so a last one that is not full must not be one of many."""
# Shuffling and dropout draw from two streams, which must not be one and the same.
_DROPOUT_STREAM = 0x5DEECE66D


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
        torch.manual_seed(seed % SEEDS)
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
    for name, own in state.items():
        _copy_into(own, np.asarray(arrays[name]), name)


def _copy_into(tensor: Tensor, array: NDArray[Any], name: str) -> None:
    if array.shape != tuple(tensor.shape) or array.dtype.kind not in "biuf":
        raise PayloadError(
            f"array '{name}' is {array.dtype} of shape {array.shape} where the model has {tensor.dtype} of "
            f"shape {tuple(tensor.shape)}; both sides must build the same model"
        )
    # Through numpy, because torch warns about arrays that are read-only, as memory maps are.
    np.copyto(tensor.detach().numpy(), array, casting="unsafe")


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

    def with_settings(self, **changes: Any) -> TorchLearner:
        """The same with other fields of ``training``, such as ``lr`` and ``optimiser``."""
        return replace(self, training=self.training.model_copy(update=changes))

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Names of the arrays that are trained; the model's others are buffers."""
        return frozenset(name for name, _ in on_meta(self.build).named_parameters())

    @property
    def epochs(self) -> int:
        """Those that the experiment gives a client."""
        return self.training.epochs

    def head(self, layers: int) -> tuple[str, ...]:
        """Names of the arrays of the last ``layers`` linear layers, in the model's order.

        Raises ExperimentError where there are not so many on top of a base.
        """
        module = on_meta(self.build)
        found = heads_of(module, self._graph(module))
        if layers > len(found):
            raise ExperimentError(
                f"algorithm.head_layers = {layers}: of {type(module).__name__} only {len(found)} linear layers can be "
                "the head; choose fewer layers, or another model"
            )
        return tuple(name for name in module.state_dict() if name in found[layers - 1])

    def train(
        self,
        arrays: Arrays,
        data: Examples,
        *,
        seed: int,
        penalty: Penalty | None = None,
        loss: Loss | None = None,
        part: Part | None = None,
        only: Collection[str] | None = None,
        epochs: int | None = None,
    ) -> TrainingResult:
        """``train_in_turn`` with one phase: ``epochs`` (default: ``training.epochs``) passes over ``data``."""
        phase = TrainingPhase(data, loss, only, penalty)
        return self.train_in_turn(arrays, [phase], [0] * (epochs or self.epochs), seed=seed, part=part)

    def train_in_turn(
        self,
        arrays: Arrays,
        phases: Sequence[TrainingPhase],
        schedule: Sequence[int],
        *,
        seed: int,
        part: Part | None = None,
    ) -> TrainingResult:
        """New arrays after one pass over the data of each phase that ``schedule`` names, from ``arrays``, to the bit
        the same for the same input. Each phase has its own momentum, and trains only its own arrays.

        ``arrays`` are those of ``part`` if there is one. ``TrainingResult.loss`` is the mean over the samples of the
        last epoch, without the penalty. Buffers keep their own dtype; halves come back as fp32. ``steps`` counts those
        that amp leaves out for gradients that are not finite, too.
        Raises PayloadError for arrays of another model, DataUnavailableError for data that does not fit it,
        TrainingDivergedError for a loss that is not finite, UnsupportedPrecisionError for what this device cannot do.
        """
        started = time.perf_counter()
        for phase in phases:
            self._check(phase.data)
        how = arithmetic(self.training)
        module = how.place(self._loaded(arrays, seed, part, training=True))
        descent = Descent(module, how, self.training, self._loss, self._targets, self.on_progress)
        with _seeded(seed ^ _DROPOUT_STREAM):
            mean_loss, steps = descent.run(phases, schedule, seed)
        check_all_finite(module, steps, how)
        module.zero_grad()  # halves come back as fp32, which takes as much as the gradients did
        return TrainingResult(to_arrays(module), mean_loss, time.perf_counter() - started, steps)

    def evaluate(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, float]:
        """``accuracy`` (0 to 1) or ``r2``, and the mean ``loss``, in fp32, of the deepest exit. Raises as ``train``."""
        self._check(data)
        module = self._loaded(arrays, 0, part)
        with torch.inference_mode():
            outputs = [(_last(module(tensor(data.x[p]))), self._targets(data.y[p])) for p in _parts(len(data))]
            return score_classes(outputs) if self.classes else score_values(outputs)

    def predict(self, arrays: Arrays, data: Examples, part: Part | None = None) -> list[NDArray[np.float32]]:
        """Each output of the model, such as its logits, shape (n, ...), in fp32: one, or one of each head or exit.

        No samples give an empty list. Raises PayloadError for arrays of another model.
        """
        module = self._loaded(arrays, 0, part)
        with torch.inference_mode():
            batches = [_all(module(tensor(data.x[p]))) for p in _parts(len(data))]
        return [np.concatenate(output) for output in zip(*batches, strict=True)]

    def features(self, arrays: Arrays, data: Examples, head_layers: int) -> Examples:
        """``data`` as the base leaves it: what goes into the last ``head_layers`` linear layers, without dropout and
        with the statistics that batch norms have. Raises as ``train``."""
        self._check(data)
        module = self._loaded(arrays, 0, None)
        seen = watch_features(module, self._graph(module), head_layers)
        with torch.inference_mode():
            for part in _parts(len(data)):
                module(tensor(data.x[part]))
        return Examples(np.concatenate([features.numpy() for features in seen]), data.y)

    def statistics(self, arrays: Arrays, data: Examples, part: Slice | None = None) -> dict[str, NDArray[Any]]:
        """Means and variances of the model's static batch norms, by name, after one pass over ``data`` (HeteroFL,
        section 3); what ``arrays`` hold of them does not matter.

        Empty for a model that has none. Raises as ``train``.
        """
        self._check(data)
        module = self._loaded(arrays, 0, part)
        norms = {name: norm for name, norm in module.named_modules() if _collects(norm)}
        for norm in norms.values():
            _start_collecting(norm)
        with torch.inference_mode():
            for batch in _parts(len(data), STATISTICS_BATCH) if norms else []:
                module(tensor(data.x[batch]))
        found = to_arrays(module)
        names = [f"{name}.{kind}".lstrip(".") for name in norms for kind in ("running_mean", "running_var")]
        return {name: found[name] for name in names}

    def _fresh(self, seed: int) -> nn.Module:
        with _seeded(seed):
            return self.build()

    def _loaded(self, arrays: Arrays, seed: int, part: Part | None, *, training: bool = False) -> nn.Module:
        """The model, or ``part`` of it, with the numbers of ``arrays``."""
        module = self._built(seed, part, training).train(training)
        load_arrays(module, arrays)
        return module

    def _built(self, seed: int, part: Part | None, training: bool) -> nn.Module:
        if isinstance(part, Head | TwoHeads):
            module = self._fresh(seed).train(training)
            graph = self._graph(module)
            if isinstance(part, Head):
                return head_module(module, graph, part.layers)
            return TwoHeaded(module, graph, part)
        if part is None or part.is_full or self.blueprint is None:
            return self._fresh(seed)
        return cut_module(self.build, self.blueprint(), part)

    def _graph(self, module: nn.Module) -> fx.Graph:
        """Traced anew, because what the graph says of functional dropout depends on the mode."""
        return traced(module)

    def _loss(self, output: Any, target: Tensor) -> Tensor:
        output = _last(output)
        if self.classes:
            return functional.cross_entropy(output, target)
        return functional.mse_loss(like(output, target), target)

    def _targets(self, y: NDArray[Any]) -> Tensor:
        if self.classes and y.ndim == 1:
            return torch.from_numpy(y.astype(np.int64))
        return torch.from_numpy(y.astype(np.float32).reshape(len(y), -1))

    def _check(self, data: Examples) -> None:
        if len(data) == 0:
            raise DataUnavailableError(
                "there are no samples to learn from or to evaluate on; give each client at least one"
            )
        if len(data.x) != len(data.y):
            raise DataUnavailableError(f"{len(data.x)} samples have {len(data.y)} labels; repair the data set")
        if self.classes and data.y.ndim == 1 and not (data.y.min() >= 0 and data.y.max() < self.classes):
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


def _parts(count: int, size: int = EVALUATION_BATCH) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _all(output: Any) -> list[NDArray[np.float32]]:
    """Every output of the model."""
    outputs = output if isinstance(output, list | tuple) else [output]
    return [widened(one).numpy() for one in outputs]


def _last(output: Any) -> Tensor:
    """The deepest exit of a model with several."""
    found: Tensor = output[-1] if isinstance(output, list | tuple) else output
    return found
