"""Other widths: scales the recorded times and bytes by what another sub-model costs.

A sub-model's bytes are known. How its training time relates to the recorded one is measured: this machine trains both
for one epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

import numpy as np

from fedquilt_common.errors import ExperimentError
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.submodels.slices import cut
from fedquilt_common.types import ClientId
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.replay.measurements import CoordinatorTimes, Measurements, RecordedTask
from fedquilt_server.replay.what_if import ALL_KINDS

BATCHES: Final = 16
"""Batches of a measured epoch."""
REPETITIONS: Final = 5
"""Measured epochs. The fastest counts, because other programs only slow them down."""


@dataclass(frozen=True)
class WidthCost:
    """What a task costs with another width, as a multiple of the recorded task.

    Attributes:
        training: seconds of training.
        bytes: bytes of the sub-model.
    """

    training: float
    bytes: float


def measure_widths(
    measurements: Measurements, widths: Mapping[str, float], bench: Workbench
) -> dict[ClientId, WidthCost]:
    """Measure what the tasks of each client cost with other widths.

    Args:
        measurements: of the recorded run.
        widths: new width by kind of board; ``ALL_KINDS`` stands for all that are not named.
        bench: the experiment's.

    Raises:
        ExperimentError: the experiment does not train, or a client trained a level that is no width.
        UncuttableModelError: fedquilt cannot cut sub-models from the model.
    """
    changes = _changes(measurements, widths)
    if not bench.learns:
        raise ExperimentError("--what-if width: this experiment does not train, so no width can be predicted")
    costs = {width: _cost(bench, width) for pair in changes.values() for width in pair}
    return {
        client: WidthCost(costs[new].training / costs[old].training, costs[new].bytes / costs[old].bytes)
        for client, (old, new) in changes.items()
    }  # fmt: skip


def _changes(measurements: Measurements, widths: Mapping[str, float]) -> dict[ClientId, tuple[float, float]]:
    """Return the recorded and the new width of each client whose width changes."""
    changes: dict[ClientId, tuple[float, float]] = {}
    for board in measurements.boards:
        new = widths.get(board.kind, widths.get(ALL_KINDS))
        if new is None:
            continue
        for client in board.clients:
            old = measurements.trained.get(client, 1.0)
            if isinstance(old, str):
                raise ExperimentError(
                    f"--what-if width: client {client} trained the level {old!r} that its algorithm chose, so its "
                    "width cannot be set; record a run of an algorithm with widths, or one that trains the whole model"
                )
            changes[client] = (old, new)
    return changes


def _cost(bench: Workbench, width: float) -> WidthCost:
    """Return the seconds that this machine needs to train the model at a width, at most 1, and its bytes."""
    part = prefix(bench.anatomy, width, "floor")
    whole = bench.first_model()
    arrays, used = (whole, None) if part.is_full else (cut(whole, part), part)
    samples = min(len(bench.dataset.train), BATCHES * bench.experiment.training.batch)
    data = bench.dataset.train.take(np.arange(samples))
    seconds = [
        bench.learner.train(arrays, data, seed=0, part=used, epochs=1).seconds for _ in range(REPETITIONS + 1)
    ]  # fmt: skip
    return WidthCost(min(seconds[1:]), 4.0 * part.entries)


def scale_measurements(measurements: Measurements, costs: Mapping[ClientId, WidthCost]) -> Measurements:
    """Return the measurements as they would be with other widths.

    Training and bytes of a reply are scaled for each client. The model on the wire is as large as the largest
    sub-model; averaging and the bytes of all replies follow the mean sub-model.
    """
    same = WidthCost(1.0, 1.0)
    sizes = [costs.get(client, same).bytes for board in measurements.boards for client in board.clients]
    mean, largest = fmean(sizes), max(sizes)
    return replace(
        measurements,
        tasks={
            (exchange, client): {number: _scale_task(task, costs.get(client, same)) for number, task in rounds.items()}
            for (exchange, client), rounds in measurements.tasks.items()
        },
        rounds={number: _scale_round(times, mean, largest) for number, times in measurements.rounds.items()},
    )


def _scale_task(task: RecordedTask, cost: WidthCost) -> RecordedTask:
    return RecordedTask(task.train * cost.training, round(task.size * cost.bytes))


def _scale_round(times: CoordinatorTimes, mean: float, largest: float) -> CoordinatorTimes:
    return replace(
        times,
        averaging=times.averaging * mean,
        rest=times.rest - times.averaging * (1 - mean),
        bytes_down=round(times.bytes_down * largest),
        bytes_up=round(times.bytes_up * mean),
        model=round(times.model * largest),
    )
