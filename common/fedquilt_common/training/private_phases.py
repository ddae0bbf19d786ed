"""Private phases of a training: they are charged before they start, and need a module that Opacus can differentiate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedquilt_common.algorithm_api import TrainingPhase
from fedquilt_common.errors import ExperimentError
from fedquilt_common.privacy.private_trainings import ALIKE, find_refused_keys
from fedquilt_common.tracing.layer_kinds import is_known
from fedquilt_common.tracing.mixing import mixes_samples
from fedquilt_common.training.memory_layout import CONTIGUOUS, MemoryLayout
from fedquilt_common.training.module_arrays import digest_arrays
from fedquilt_common.types import Arrays

if TYPE_CHECKING:
    from fedquilt_common.experiment.training_section import Training
    from fedquilt_common.privacy.meter import PrivacyMeter, PrivateSteps


def charge_phases(
    meter: PrivacyMeter | None,
    training: Training,
    phases: Sequence[TrainingPhase],
    schedule: Sequence[int],
    arrays: Arrays,
) -> dict[int, PrivateSteps]:
    """Charge the phases on samples that are not public; returns how each is made private, by its position.

    Args:
        meter: charges them; None: training is not private.
        training: the experiment's section.
        phases: what each phase trains, and on which samples.
        schedule: positions in ``phases``, one for each epoch.
        arrays: the numbers from which the training starts, in the shapes of the model or of a part.

    Raises:
        ExperimentError: the loss of a phase cannot be private, or a setting of the training.
        PrivacyBudgetError: the training would spend more than the client's privacy budget.
    """
    plans: dict[int, PrivateSteps] = {}
    for number, phase in enumerate(phases):
        if meter is not None and not phase.public:
            _check_phase(phase, training)
            start, samples = digest_arrays(arrays), digest_arrays({"x": phase.data.x, "y": phase.data.y})
            only = None if phase.only is None else sorted(phase.only)
            facts = [start, samples, list(schedule), training.model_dump_json(), only]
            plans[number] = meter.charge(len(phase.data), training.batch, schedule.count(number), facts)
    return plans


def _check_phase(phase: TrainingPhase, training: Training) -> None:
    for key in find_refused_keys(training):
        raise ExperimentError(
            f"{key} = {getattr(training, key)}: {ALIKE}; the algorithm must not change it with `with_settings`"
        )
    if phase.batch_loss is not None:
        raise ExperimentError(
            "with `privacy`, the loss must be a mean over samples, but this algorithm has a loss of whole batches "
            "(batch_loss), in which a sample has no gradient of its own; choose another algorithm"
        )
    if phase.watch is not None:
        raise ExperimentError(
            "with `privacy`, the number of epochs must be fixed, but this algorithm stops when the loss on other "
            "samples no longer falls (watch), which no budget accounts for; choose another algorithm"
        )


def secret_seed(plans: Mapping[int, PrivateSteps], seed: int) -> int:
    """Return the seed of what layers draw, such as dropout: a secret of the board if a phase is private.

    Layers draw for each place in a batch. One sample more moves the samples after it to other places, so the sum of
    gradients changes by more than ``clip`` for whoever knows the draws.

    Args:
        plans: how each private phase is made private.
        seed: of a training without private phases.
    """
    first = next(iter(plans.values()), None)
    return seed if first is None else int(first.generator.integers(1 << 62))


def check_buffers(module: nn.Module, start: Arrays, trained: Arrays) -> None:
    """Check that private training has changed nothing but parameters, which alone have noise.

    Args:
        module: the trained one.
        start: the arrays from which the training started, in the module's shapes.
        trained: the module's arrays.

    Raises:
        ExperimentError: a buffer has changed.
    """
    for name in start.keys() - dict(module.named_parameters(remove_duplicate=False)).keys():
        if not np.array_equal(start[name], trained[name]):
            raise ExperimentError(
                f"the model cannot be trained with `privacy`: training changes its buffer '{name}', which can depend "
                "on samples and has no noise; choose a model without such a buffer"
            )


def make_module_private(module: nn.Module, x: NDArray[Any]) -> tuple[nn.Module, MemoryLayout]:
    """Return a module that Opacus can differentiate, and the order of numbers in memory that it needs.

    Opacus 1.6 computes wrong gradients for convolutions of tensors that have their channels last.

    Args:
        module: any module; it is changed.
        x: samples of shape (n, *input_shape); their numbers do not matter.

    Raises:
        ExperimentError: the module mixes the samples of a batch, or has a loss of its own.
    """
    from fedquilt_common.training.private_gradients import make_private  # loads Opacus

    if hasattr(module, "training_loss"):
        raise ExperimentError(
            "with `privacy`, a model cannot have a loss of its own, which may mix samples; choose another"
        )
    private = make_private(module)
    if not is_known(module) and mixes_samples(private, x):
        raise ExperimentError(
            "the model cannot be trained with `privacy`: what it returns for a sample depends on the other samples of "
            "the batch, so the gradient of one sample cannot be bounded; choose another model"
        )
    return private, CONTIGUOUS
