"""Whether an experiment with differential privacy keeps what it promises.

The coordinator checks it before a run starts. Boards check it too: the coordinator may be of another version.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedquilt_common.algorithm_api import Algorithm, declaration_of, pooling_problem, privacy_problem
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.privacy.private_trainings import ALIKE, find_refused_keys

TASKS = ("classification", "regression")
"""Learning tasks whose loss is a mean over samples, so that each sample has a gradient of its own."""


def check_privacy(experiment: Experiment, algorithm: Algorithm, task: str, holdout: float) -> None:
    """Check an experiment with differential privacy; one without passes.

    Args:
        experiment: the experiment.
        algorithm: built from it.
        task: name of its learning task.
        holdout: share of its samples that each client keeps for testing.

    Raises:
        ExperimentError: it would reveal more of the samples than the budget allows; names the key and what to do.
    """
    local = _find_local_problems(experiment, algorithm, task) if experiment.is_private else ()
    central = _find_central_problems(experiment, algorithm) if experiment.central_privacy is not None else ()
    shared = _find_shared_problems(experiment, holdout) if experiment.is_private or experiment.central_privacy else ()
    for problem in (*local, *central, *shared):
        raise ExperimentError(f"{problem}; or remove the section privacy")


def _find_shared_problems(experiment: Experiment, holdout: float) -> Iterator[str]:
    if holdout:
        yield (
            f"data.holdout = {holdout:g}: scores on a client's own samples would reveal them in part; set it to 0, so "
            "that models are tested on the official test samples"
        )
    if experiment.data.local_test == "own-labels":
        yield "data.local_test = 'own-labels': scores would tell which classes a client has; remove the key"
    if experiment.data.sensor_noise is not None and experiment.is_private:
        yield "data.sensor_noise: its size depends on all samples of a client; remove the key"


def _find_central_problems(experiment: Experiment, algorithm: Algorithm) -> Iterator[str]:
    name = experiment.algorithm.name
    if reason := pooling_problem(algorithm):
        yield (
            f"algorithm.name = {name}: noise on the mean of the updates does not protect it, because {reason}. Choose "
            "another one, such as fedavg, or privacy.mode: local"
        )
    if declaration_of(algorithm).tests_updates:
        yield (
            f"algorithm.name = {name}: its clients test what they have trained, but the noisy mean weighs all clients "
            "equally and accounts for no tests. Choose another one, such as fedavg, or privacy.mode: local"
        )
    if declaration_of(algorithm).own_models:
        yield (
            f"algorithm.name = {name}: its clients send labels, not updates of a model that they receive, so there is "
            "nothing to clip. Choose another one, such as fedavg, or privacy.mode: local"
        )


def _find_local_problems(experiment: Experiment, algorithm: Algorithm, task: str) -> Iterator[str]:
    if reason := privacy_problem(algorithm):
        where = f"algorithm.name = {experiment.algorithm.name}"
        yield f"{where}: it cannot train with `privacy`, because {reason}. Choose another algorithm or option"
    if task not in TASKS:
        yield f"data.set = {experiment.data.set}: the loss of {task} mixes the samples of a batch; choose another one"
    for place, training in experiment.trainings(private=True):
        for key in find_refused_keys(training):
            value = getattr(training, key)
            where = "training" if value == getattr(experiment.training, key) else place
            yield f"{where}.{key} = {value}: {ALIKE}; remove the key"
