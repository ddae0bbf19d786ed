"""What the clients of an experiment keep from task to task."""

from __future__ import annotations

from collections.abc import Iterator

from fedquilt_common.experiment.experiment import Experiment


def find_memories(experiment: Experiment, declared: bool | None) -> Iterator[str]:
    """Yield what the experiment's clients keep from task to task, and what makes them keep it; nothing if they do not.

    Args:
        experiment: the experiment.
        declared: what its algorithm declares as ``private_memory``.
    """
    name = experiment.algorithm.name
    if declared:
        yield f"models or other arrays of each client's own (algorithm.name = {name})"
    if declared is None:
        yield (
            f"perhaps arrays of each client's own: algorithm.name = {name} does not declare `private_memory`, False "
            "or True"
        )
    for key, training in experiment.trainings():
        if training.keep_optimiser:
            yield f"the states of optimisers ({key}.keep_optimiser)"
            break
    if experiment.is_private:
        yield "what was spent of each client's privacy (privacy.mode = local)"
    if experiment.secure_aggregation:
        yield "the secrets of secure aggregation (secure_aggregation)"


def remembers(experiment: Experiment, declared: bool | None, *, sends: bool) -> bool:
    """Return whether what a client sends may depend on the rounds in which it was asked before.

    Args:
        experiment: the experiment.
        declared: what its algorithm declares as ``private_memory``.
        sends: what it declares as ``sends_memory``.
    """
    return (declared is not False and sends) or any(training.keep_optimiser for _, training in experiment.trainings())
