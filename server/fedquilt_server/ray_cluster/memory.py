"""The private memory of an experiment's clients, which a dead node takes along. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fedquilt_common.algorithm_api import declaration_of
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment


def list_memories(experiment: Experiment) -> list[str]:
    """List what clients keep from task to task, and what makes them keep it; empty if they keep nothing."""
    return [*_find_memories(experiment)]


def _find_memories(experiment: Experiment) -> Iterator[str]:
    name = experiment.algorithm.name
    kept = declaration_of(make_algorithm(name, experiment.algorithm.fields, ("*",))).private_memory
    if kept:
        yield f"models or other arrays of each client's own (algorithm.name = {name})"
    if kept is None:
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


def refuse_private_memory(experiment: Experiment) -> None:
    """Refuse an experiment whose clients keep private memory: a node that dies would take it along.

    Raises:
        ExperimentError: they keep some; the text names it.
    """
    if kept := list_memories(experiment):
        raise ExperimentError(
            f"with --ray, a node that dies takes along what its clients keep: {'; '.join(kept)}. Give --ray-state "
            "FOLDER, a folder that all nodes share"
        )
