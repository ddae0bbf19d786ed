"""The training loop: stochastic gradient descent on a torch module, in one phase or several in turn."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedquilt_common.algorithm_api import Batch, Loss, TrainingPhase, half_precision_problem
from fedquilt_common.errors import TrainingDivergedError
from fedquilt_common.seeds import derive_seed
from fedquilt_common.tracing.generators import SEED_LIMIT
from fedquilt_common.tracing.outputs import OutputForm, check_same_form, form_of
from fedquilt_common.training.epoch_batches import divide_order, draw_order
from fedquilt_common.training.evaluation_batches import evaluation_batches
from fedquilt_common.training.lasting_optimisers import OptimiserState
from fedquilt_common.training.memory_layout import CONTIGUOUS, MemoryLayout, to_tensor
from fedquilt_common.training.optimisers import Optimiser
from fedquilt_common.training.precision import Arithmetic, LossScale, explain_unsupported, widen_halves
from fedquilt_common.training.repeated_steps import repeat_until_taken
from fedquilt_common.training.torch_setup import leave_new_memory
from fedquilt_common.training.training_checks import check_loss, check_penalty, pick_trained
from fedquilt_common.types import Examples, Progress

if TYPE_CHECKING:
    from fedquilt_common.experiment.training_section import Training
    from fedquilt_common.privacy.meter import PrivateSteps
    from fedquilt_common.training.private_gradients import PrivateGradients

_IMAGES = 4
"""Dimensions of a batch of images; the features of a head that is trained alone have two."""
_DIVERGED = "try a smaller training.lr, or look for values in the data that are not finite"


@dataclass(frozen=True)
class SgdLoop:
    """A module and the settings with which it is trained.

    Attributes:
        module: the model, on its device.
        arithmetic: device and precision.
        training: the experiment's section, with ``batch``, ``lr`` and the optimiser.
        loss: used by phases that name none.
        targets: turns labels of shape (n,) or (n, outputs) into the tensor that the loss takes.
        on_progress: called after each step with the finished part of the training, from 0 to 1.
        plans: how each phase is made private, by its position; a phase without one is not.
        lasting: states of optimisers that outlive the training, by the number of the phase: a phase continues from its
            state, and replaces it at the end. None: each phase starts with a new optimiser.
        layout: the order of the samples' numbers in memory, which suits the module.
        features: where each forward pass of the module leaves the input of its last linear layer, shape (n, inputs);
            phases with a ``batch_loss`` need it, with others it stays empty.
        black: what black is in the samples, of a shape that broadcasts to (channels, 1, 1); ``training.augment`` pads
            with it.
        form: of the module's outputs in evaluation, which training must have too, unless the module's own loss takes
            them; None: not compared.
    """

    module: nn.Module
    arithmetic: Arithmetic
    training: Training
    loss: Loss | Callable[[Any, Tensor], Tensor]
    targets: Callable[[NDArray[Any]], Tensor]
    on_progress: Progress | None = None
    lasting: MutableMapping[int, OptimiserState] | None = None
    plans: Mapping[int, PrivateSteps] = field(default_factory=dict)
    layout: MemoryLayout = CONTIGUOUS
    features: list[Tensor] = field(default_factory=list)
    black: NDArray[Any] = field(default_factory=lambda: np.zeros(1, np.float32))
    form: OutputForm | None = None

    def run(self, phases: Sequence[TrainingPhase], schedule: Sequence[int], seed: int) -> tuple[float, int]:
        """Train the module in place, one epoch for each entry of ``schedule``.

        Args:
            phases: what is trained, and on which samples; each has its own optimiser state.
            schedule: positions in ``phases``, in the order of the epochs.
            seed: of the order of the samples.

        Returns:
            The mean loss over the samples of the last epoch, without the penalty, and the number of steps.

        Raises:
            TrainingDivergedError: a loss is not finite.
            UnsupportedPrecisionError: torch cannot train the model in this precision on this device.
        """
        now = trainable_parameters(self.module)
        start = {name: p.detach().clone() for name, p in now.items()} if any(p.penalty for p in phases) else {}
        running = [
            self._start_phase(number, phase, schedule.count(number), now, start, seed)
            for number, phase in enumerate(phases)
        ]
        total = sum(running[number].steps for number in schedule)
        steps, losses = 0, list[tuple[float, int]]()
        with contextlib.ExitStack() as after_first_step:
            for number in schedule:
                losses = []
                for step in running[number].epoch(first=steps == 0):
                    steps += 1
                    losses.append(step)
                    if steps == 1:
                        after_first_step.enter_context(leave_new_memory())
                    if self.on_progress:
                        self.on_progress(steps / total)
                running[number].note_epoch()
                if running[number].has_converged:
                    break
        for phase_run in running:
            phase_run.load_best()
        self._keep_optimisers(running)
        return sum(value * n for value, n in losses) / max(1, sum(n for _, n in losses)), steps

    def inputs(self, batch: Examples, arithmetic: Arithmetic) -> Tensor:
        """Return the samples of a batch in their shape, as the module takes them: device, precision and order."""
        return self.layout.order(arithmetic.inputs(to_tensor(batch.x)))

    def _start_phase(
        self,
        number: int,
        phase: TrainingPhase,
        epochs: int,
        now: dict[str, nn.Parameter],
        start: dict[str, Tensor],
        seed: int,
    ) -> _RunningPhase:
        trained = list(pick_trained(now, phase.only).values())
        scale = LossScale() if self.arithmetic.precision == "amp" else None
        own = seed if number == 0 else derive_seed(seed, "phase", number)
        shuffler = torch.Generator().manual_seed(own % SEED_LIMIT)
        optimiser = Optimiser(trained, self.training, scale)
        private = _open_private(self.module, trained, self.plans.get(number))
        running = _RunningPhase(self, phase, epochs, optimiser, shuffler, now, start, private)
        if self.lasting is not None and number in self.lasting:
            running.optimiser.load(running.trained_names, self.lasting[number])
        return running

    def _keep_optimisers(self, running: Sequence[_RunningPhase]) -> None:
        if self.lasting is not None:
            self.lasting.update({n: one.optimiser.state(one.trained_names) for n, one in enumerate(running)})


@dataclass
class _RunningPhase:
    """A phase in progress: its optimiser, and how far it is."""

    loop: SgdLoop
    phase: TrainingPhase
    epochs: int
    optimiser: Optimiser
    shuffler: torch.Generator
    now: dict[str, nn.Parameter]
    start: dict[str, Tensor]
    private: PrivateGradients | None = None
    steps_done: int = 0
    best: tuple[float, dict[str, Tensor]] | None = None
    epochs_without_gain: int = 0

    @property
    def trained_names(self) -> list[str]:
        """Names of the optimiser's parameters, in their order."""
        return list(pick_trained(self.now, self.phase.only))

    @property
    def steps(self) -> int:
        """Number of steps in one epoch."""
        if self.private is not None:
            return self.private.steps.steps
        return len(divide_order(np.arange(len(self.phase.data)), self.loop.training, self.loop.module))

    @property
    def _total_steps(self) -> int:
        return self.steps * self.epochs

    @property
    def has_converged(self) -> bool:
        """Whether ``patience`` is used up: the loss on ``phase.watch`` has not fallen for that many epochs."""
        return self.phase.watch is not None and self.epochs_without_gain >= self.phase.patience

    def note_epoch(self) -> None:
        """Measure the loss on ``phase.watch`` after an epoch, and keep the state if it is the best so far."""
        if self.phase.watch is None:
            return
        loss = self._watched_loss(self.phase.watch)
        if self.best is None or loss < self.best[0]:
            state = {name: tensor.clone() for name, tensor in self.loop.module.state_dict().items()}
            self.best, self.epochs_without_gain = (loss, state), 0
        else:
            self.epochs_without_gain += 1

    def _watched_loss(self, data: Examples) -> float:
        """Mean loss on samples that are not trained on: of the batches, weighted by their sizes."""
        module, arithmetic = self.loop.module.eval(), self.loop.arithmetic
        loss, mean = self.phase.loss or self.loop.loss, 0.0
        for index in evaluation_batches(data):
            batch = Examples(data.x[index], data.y[index])
            with torch.inference_mode(), arithmetic.autocast():
                output = _outputs(module(self.loop.inputs(batch, arithmetic)))
            value = float(loss(output, self.loop.targets(batch.y).to(arithmetic.device)))
            mean += value * (len(batch) / len(data))
        return mean

    def load_best(self) -> None:
        """Load the numbers with the lowest loss on ``phase.watch`` into the module."""
        if self.best is not None:
            self.loop.module.load_state_dict(self.best[1])

    def epoch(self, *, first: bool) -> Iterator[tuple[float, int]]:
        """Make one pass over the data, and yield loss and size of each batch.

        Args:
            first: no step has been taken before, so an error may come from the precision.
        """
        data = self.phase.data
        _set_mode(self.loop.module, min(len(data), self.loop.training.batch))
        trained = {id(parameter) for parameter in self.optimiser.parameters}
        for parameter in self.now.values():
            parameter.requires_grad_(id(parameter) in trained)
        with self.private or contextlib.nullcontext():
            for step, index in enumerate(self._draw_batches()):
                batch = self._read_batch(index)
                self._set_rate()
                if self.private is not None:
                    yield self._step_privately(self.private, batch), len(index)
                else:
                    yield self._step(batch, index, step + 1, tried=not first or step > 0), len(index)

    def _set_rate(self) -> None:
        if self.phase.anneal:
            part_done = self.steps_done / self._total_steps
            self.optimiser.rate = self.loop.training.lr * (1 + math.cos(math.pi * part_done)) / 2
        self.steps_done += 1

    def _step(self, batch: Examples, index: NDArray[np.int64], step: int, *, tried: bool) -> float:
        """Take a step, the epoch's number ``step``, and return the loss on the batch, without the penalty.

        Args:
            batch: the samples.
            index: their positions in the data, shape (n,).
            step: the number of the step in the epoch, from 1.
            tried: an error cannot come from the precision.
        """
        arithmetic, compute_loss = self.loop.arithmetic, functools.partial(self._compute_loss, batch, index)
        with contextlib.nullcontext() if tried else explain_unsupported(self.loop.module, arithmetic, compute_loss):
            loss, total = compute_loss(arithmetic)
            value = _read_finite(total, step, self.loop.training)
            if total is not loss:
                value = loss.item()
            if not self.optimiser.step(total):
                repeat_until_taken(self.loop.module, self.optimiser, lambda: compute_loss(arithmetic)[1])
        return value

    def _draw_batches(self) -> Iterable[NDArray[np.int64]]:
        data, training = self.phase.data, self.loop.training
        if self.private is not None:
            return self.private.draw_batches(len(data))
        return divide_order(draw_order(data.y, training, self.shuffler), training, self.loop.module)

    def _step_privately(self, private: PrivateGradients, batch: Examples) -> float:
        """Take a step with a private gradient, and return the loss on the batch; 0 if it is empty."""
        mean = 0.0
        if not len(batch) and not private.knows_used:
            any_sample = Examples(self.phase.data.x[:1], self.phase.data.y[:1])
            private.find_used(self._data_loss(any_sample, self.loop.arithmetic))
        for part in private.divide(len(batch)):
            samples = Examples(batch.x[part], batch.y[part])
            loss = self._data_loss(samples, self.loop.arithmetic)
            private.add(loss, len(samples))
            mean += loss.item() * (len(samples) / len(batch))
        private.finish(self._compute_penalty())
        self.optimiser.update()
        return mean

    def _read_batch(self, index: NDArray[np.int64]) -> Examples:
        data, training, augment = self.phase.data, self.loop.training, self.loop.training.augment
        if training.mosaic:
            from fedquilt_common.augment.mosaic import read_with_mosaics

            return read_with_mosaics(data, index, training.mosaic, self._draw_seed())
        batch = Examples(data.x[index], data.y[index])
        if augment is None or self.phase.public or data.x.ndim != _IMAGES:
            return batch
        from fedquilt_common.augment.batches import augment_batch

        x = augment_batch(batch.x, augment.crop, augment.flip, self.loop.black, self._draw_seed())
        return Examples(x, batch.y)

    def _draw_seed(self) -> int:
        if self.private is not None:  # secret: an image's crop depends on its place in the batch, as in secret_seed
            return int(self.private.steps.generator.integers(SEED_LIMIT))
        return int(torch.randint(1 << 62, (), generator=self.shuffler))

    def _compute_loss(self, batch: Examples, index: NDArray[np.int64], arithmetic: Arithmetic) -> tuple[Tensor, Tensor]:
        """Loss of a batch, and the same with the penalty; both scalars."""
        value = self._data_loss(batch, arithmetic, index)
        penalty = self._compute_penalty()
        return value, value if penalty is None else value + penalty

    def _compute_penalty(self) -> Tensor | None:
        if self.phase.penalty is None:
            return None
        value: Tensor = self.phase.penalty(self.now, self.start)
        check_penalty(value, self.phase.penalty)
        return value

    def _data_loss(self, batch: Examples, arithmetic: Arithmetic, index: NDArray[np.int64] | None = None) -> Tensor:
        samples = self.loop.inputs(batch, arithmetic)
        with arithmetic.autocast():
            output = self.loop.module(samples)
        own_loss = hasattr(self.loop.module, "training_loss")
        if self.loop.form is not None and not (own_loss and self.phase.loss is None):
            check_same_form(form_of(output), self.loop.form, own_loss=own_loss)
        outputs, targets = _outputs(output), self.loop.targets(batch.y).to(arithmetic.device)
        loss: Callable[..., Any] = self.phase.loss or self.loop.loss
        value: Tensor = loss(outputs, targets)
        features = self.loop.features[-1:]
        self.loop.features.clear()
        if self.phase.batch_loss is not None and index is not None:
            positions = torch.from_numpy(index).to(arithmetic.device)
            loss = self.phase.batch_loss
            value = loss(Batch(value, outputs, targets, widen_halves(features[0]), samples, positions))
        check_loss(value, loss)
        return value


def _open_private(
    module: nn.Module, parameters: list[nn.Parameter], steps: PrivateSteps | None
) -> PrivateGradients | None:
    if steps is None:
        return None
    from fedquilt_common.training.private_gradients import PrivateGradients  # loads Opacus

    return PrivateGradients(module, parameters, steps)


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a new module does not freeze (``requires_grad``), by name and in its shapes."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _outputs(output: Any) -> Any:
    """The model's outputs in fp32, as a loss takes them: one tensor, or a list of several."""
    return [widen_halves(o) for o in output] if isinstance(output, list | tuple) else widen_halves(output)


def _set_mode(module: nn.Module, batch: int) -> None:
    module.train()
    if batch == 1:  # one sample has no batch statistics, so batch norm uses its stored ones
        for part in module.modules():
            if isinstance(part, _BatchNorm):
                part.eval()


def _read_finite(loss: Tensor, step: int, training: Training) -> float:
    value = loss.item()
    if not math.isfinite(value):
        raise TrainingDivergedError(f"the loss became {value} in step {step}; {divergence_advice(training)}")
    return value


def check_all_finite(module: nn.Module, steps: int, training: Training) -> None:
    """Check the trained numbers, because the last step can overflow after finite losses.

    Raises:
        TrainingDivergedError: a parameter or buffer is not finite.
    """
    for name, tensor in module.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise TrainingDivergedError(f"'{name}' is not finite after {steps} steps; {divergence_advice(training)}")


def divergence_advice(training: Training) -> str:
    """Return what to change in settings with which numbers did not stay finite."""
    if problem := half_precision_problem(training.optimiser, training.precision):
        return problem
    narrow = training.precision in ("fp16", "amp")
    return _DIVERGED + ("; fp16 ends at 65504, fp32 and bf16 do not" if narrow else "")
