"""Whether an experiment with differential privacy keeps what it promises.

The coordinator checks it before a run starts. Boards check it too: the coordinator may be of another version.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedquilt_common.algorithm_api import Algorithm, privacy_problem
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment

TASKS = ("classification", "regression")
"""Learning tasks whose loss is a mean over samples, so that each sample has a gradient of its own."""


def check_privacy(experiment: Experiment, algorithm: Algorithm, task: str, holdout: float) -> None:
    """Check an experiment whose clients train with differential privacy; one without passes.

    Args:
        experiment: the experiment.
        algorithm: built from it.
        task: name of its learning task.
        holdout: share of its samples that each client keeps for testing.

    Raises:
        ExperimentError: it would tell more of the samples than the budget allows; names the key and what to do.
    """
    if experiment.is_private:
        for problem in _find_problems(experiment, algorithm, task, holdout):
            raise ExperimentError(f"{problem}; or remove the section privacy")


def _find_problems(experiment: Experiment, algorithm: Algorithm, task: str, holdout: float) -> Iterator[str]:
    if reason := privacy_problem(algorithm):
        name = experiment.algorithm.name
        yield f"algorithm.name = {name}: it cannot train with `privacy`, because {reason}. Choose another one"
    if task not in TASKS:
        yield f"data.set = {experiment.data.set}: the loss of {task} mixes the samples of a batch; choose another one"
    if holdout:
        yield (
            f"data.holdout = {holdout:g}: scores on a client's own samples would tell of them; set it to 0, so that "
            "models are tested on the official test samples"
        )
    if experiment.data.sensor_noise is not None:
        yield "data.sensor_noise: its size depends on all samples of a client; remove the key"
    for training in (variant.training for variant in experiment.variants):
        wrong = {"precision": training.precision != "fp32", "sampling": training.sampling != "shuffled"}
        for key in (key for key, is_wrong in wrong.items() if is_wrong):
            value = getattr(training, key)
            yield f"training.{key} = {value}: private training draws each sample alike, in fp32; remove the key"
