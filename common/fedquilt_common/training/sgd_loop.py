"""Gradient descent on a torch module, in batches, in one phase or several in turn."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedquilt_common.algorithm_api import Loss, TrainingPhase
from fedquilt_common.errors import TrainingDivergedError
from fedquilt_common.seeds import derive_seed
from fedquilt_common.training.optimisers import Optimiser
from fedquilt_common.training.precision import Arithmetic, LossScale, refusing, widened
from fedquilt_common.types import Examples, Progress

if TYPE_CHECKING:
    from fedquilt_common.experiment.sections import Training

SEEDS = 1 << 63
_DIVERGED = "try a smaller training.lr, or look for values in the data that are not finite"


@dataclass(frozen=True)
class Descent:
    """What is trained, and how: the module on its device, the default loss, how labels become targets.

    ``on_progress`` is told the part of the training that is done, from 0 to 1, after each step.
    """

    module: nn.Module
    how: Arithmetic
    training: Training
    loss: Loss | Callable[[Any, Tensor], Tensor]
    targets: Callable[[NDArray[Any]], Tensor]
    on_progress: Progress | None = None

    def run(self, phases: Sequence[TrainingPhase], schedule: Sequence[int], seed: int) -> tuple[float, int]:
        """One epoch of each phase that ``schedule`` names, in its order; momentum lives as long as its phase.

        Returns the mean loss over the samples of the last epoch, and the number of steps. Raises as ``refusing``
        does, and TrainingDivergedError.
        """
        now = dict(self.module.named_parameters())
        start = {name: p.detach().clone() for name, p in now.items()} if any(p.penalty for p in phases) else {}
        stretches = [
            self._stretch(number, phase, schedule.count(number), now, start, seed)
            for number, phase in enumerate(phases)
        ]
        total = sum(stretches[number].steps for number in schedule)
        steps, losses = 0, list[tuple[float, int]]()
        for number in schedule:
            losses = []
            for step in stretches[number].epoch(first=steps == 0):
                steps += 1
                losses.append(step)
                if self.on_progress:
                    self.on_progress(steps / total)
            if stretches[number].is_settled():
                break
        for stretch in stretches:
            stretch.keep_best()
        return sum(value * n for value, n in losses) / sum(n for _, n in losses), steps

    def _stretch(
        self,
        number: int,
        phase: TrainingPhase,
        epochs: int,
        now: dict[str, nn.Parameter],
        start: dict[str, Tensor],
        seed: int,
    ) -> _Stretch:
        trained = [p for name, p in now.items() if phase.only is None or name in phase.only]
        scale = LossScale() if self.how.precision == "amp" else None
        own = seed if number == 0 else derive_seed(seed, "phase", number)
        shuffler = torch.Generator().manual_seed(own % SEEDS)
        return _Stretch(self, phase, epochs, Optimiser(trained, self.training, scale), shuffler, now, start)


@dataclass
class _Stretch:
    """A phase under way."""

    descent: Descent
    phase: TrainingPhase
    epochs: int
    optimiser: Optimiser
    shuffler: torch.Generator
    now: dict[str, nn.Parameter]
    start: dict[str, Tensor]
    done: int = 0
    best: tuple[float, dict[str, Tensor]] | None = None
    waited: int = 0

    @property
    def steps(self) -> int:
        """Of one epoch."""
        return len(_batches(np.arange(len(self.phase.data)), self.descent.training, self.descent.module))

    @property
    def _all(self) -> int:
        return self.steps * self.epochs

    def is_settled(self) -> bool:
        """After an epoch: whether the samples that are watched have not become better for long enough."""
        if self.phase.watch is None:
            return False
        loss = self._watched(self.phase.watch)
        if self.best is None or loss < self.best[0]:
            state = {name: found.clone() for name, found in self.descent.module.state_dict().items()}
            self.best, self.waited = (loss, state), 0
        else:
            self.waited += 1
        return self.waited >= self.phase.patience

    def _watched(self, data: Examples) -> float:
        """The mean loss on samples that are not trained on."""
        module, how = self.descent.module.eval(), self.descent.how
        with torch.inference_mode(), how.autocast():
            output = _outputs(module(how.inputs(tensor(data.x))))
        loss = self.phase.loss or self.descent.loss
        return float(loss(output, self.descent.targets(data.y).to(how.device)))

    def keep_best(self) -> None:
        """At the end: the arrays with which the samples that are watched did best."""
        if self.best is not None:
            self.descent.module.load_state_dict(self.best[1])

    def epoch(self, *, first: bool) -> Iterator[tuple[float, int]]:
        """One pass over the data; yields loss and size of each batch. ``first``: nothing has been tried before."""
        module, how, data = self.descent.module, self.descent.how, self.phase.data
        _set_mode(module, min(len(data), self.descent.training.batch))
        trained = {id(parameter) for parameter in self.optimiser.parameters}
        for parameter in self.now.values():
            parameter.requires_grad_(id(parameter) in trained)
        order = torch.randperm(len(data), generator=self.shuffler).numpy()
        for step, index in enumerate(_batches(order, self.descent.training, module)):
            tried = not first or step > 0
            if self.phase.anneal:
                self.optimiser.rate = self.descent.training.lr * (1 + math.cos(math.pi * self.done / self._all)) / 2
            self.done += 1
            with contextlib.nullcontext() if tried else refusing(module, how, functools.partial(self._goal, index)):
                value, whole = self._goal(index, how)
                _check_finite(whole, step + 1, how)
                self.optimiser.step(whole)
            yield value.item(), len(index)

    def _goal(self, index: NDArray[np.int64], how: Arithmetic) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the same with the penalty."""
        data, penalty = self.phase.data, self.phase.penalty
        with how.autocast():
            output = self.descent.module(how.inputs(tensor(data.x[index])))
        loss = self.phase.loss or self.descent.loss
        value = loss(_outputs(output), self.descent.targets(data.y[index]).to(how.device))
        return value, value if penalty is None else value + penalty(self.now, self.start)


def tensor(x: NDArray[Any]) -> Tensor:
    """A batch of samples. Images lie with their channels last, in which pooling and convolution are faster."""
    # A copy where x is read-only, since torch warns about those; indexed batches are copies already.
    batch = x if x.flags.writeable else x.copy()
    made = torch.from_numpy(batch if batch.dtype.kind != "f" else batch.astype(np.float32, copy=False))
    return made.to(memory_format=torch.channels_last) if made.dim() == 4 and made.is_floating_point() else made


def _outputs(output: Any) -> Any:
    """As a loss gets them: in fp32, whatever the model computes in; several outputs as a list."""
    return [widened(o) for o in output] if isinstance(output, list | tuple) else widened(output)


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


def check_all_finite(module: nn.Module, steps: int, how: Arithmetic) -> None:
    """The last step can overflow where every loss before it was finite. Raises TrainingDivergedError."""
    for name, found in module.state_dict().items():
        if not torch.isfinite(found).all():
            raise TrainingDivergedError(f"'{name}' is not finite after {steps} steps; {_advice(how)}")


def _advice(how: Arithmetic) -> str:
    return _DIVERGED + ("; fp16 ends at 65504, fp32 and bf16 do not" if how.precision in ("fp16", "amp") else "")
