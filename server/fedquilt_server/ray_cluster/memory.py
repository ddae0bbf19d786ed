"""The private memory of an experiment's clients, which a dead node takes along. Pure."""

from __future__ import annotations

from fedquilt_common.algorithm_api import declaration_of
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.memories import find_memories


def list_memories(experiment: Experiment) -> list[str]:
    """List what clients keep from task to task, and what makes them keep it; empty if they keep nothing."""
    algorithm = make_algorithm(experiment.algorithm.name, experiment.algorithm.fields, ("*",))
    return [*find_memories(experiment, declaration_of(algorithm).private_memory)]


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
