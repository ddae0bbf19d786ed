"""Private phases of a training: they are charged before they start, and need a module that Opacus can differentiate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from fedquilt_common.algorithm_api import TrainingPhase
from fedquilt_common.errors import ExperimentError
from fedquilt_common.training.memory_layout import CONTIGUOUS, MemoryLayout
from fedquilt_common.training.module_arrays import digest_arrays
from fedquilt_common.types import Arrays

if TYPE_CHECKING:
    from fedquilt_common.experiment.sections import Training
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
        ExperimentError: the loss of a phase cannot be private.
        PrivacyBudgetError: the training would spend more than the client's privacy budget.
    """
    plans: dict[int, PrivateSteps] = {}
    for number, phase in enumerate(phases):
        if meter is not None and not phase.public:
            if phase.batch_loss is not None:
                raise ExperimentError(
                    "with `privacy`, the loss must be a mean over samples, but this algorithm has a loss of whole "
                    "batches (batch_loss), in which a sample has no gradient of its own; choose another algorithm"
                )
            start, samples = digest_arrays(arrays), digest_arrays({"x": phase.data.x, "y": phase.data.y})
            only = None if phase.only is None else sorted(phase.only)
            facts = [start, samples, list(schedule), training.model_dump_json(), only]
            plans[number] = meter.charge(len(phase.data), training.batch, schedule.count(number), facts)
    return plans


def make_module_private(module: nn.Module) -> tuple[nn.Module, MemoryLayout]:
    """Return a module that Opacus can differentiate, and the order of numbers in memory that it needs.

    Opacus 1.6 computes wrong gradients for convolutions of tensors that have their channels last.

    Args:
        module: any module; it is changed.

    Raises:
        ExperimentError: the module mixes the samples of a batch, or has a loss of its own.
    """
    from fedquilt_common.training.private_gradients import make_private  # loads Opacus

    if hasattr(module, "training_loss"):
        raise ExperimentError(
            "with `privacy`, a model cannot have a loss of its own, which may mix samples; choose another"
        )
    return make_private(module), CONTIGUOUS
