"""Checks before a run that each client with local differential privacy can train on its samples."""

from __future__ import annotations

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.privacy.private_trainings import size_problem
from fedquilt_common.types import ClientId


def check_private_shares(bench: ExperimentTools) -> None:
    """Check that each private client can train on its samples: else the others spend budget, and the run fails.

    The samples of ``data.delivery: own`` are unknown here; their boards check them.

    Args:
        bench: derives the partition from the experiment.

    Raises:
        ExperimentError: a client has fewer samples than a batch, or so many that its delta means little.
    """
    if bench.experiment.data.delivery == "own":
        return
    problems = dict[ClientId, str]()
    for client, privacy in bench.experiment.private_clients():
        batch = bench.experiment.variant(client).training.batch
        if problem := size_problem(len(bench.shares[client].train), batch, privacy.delta):
            problems[client] = problem
    if problems:
        client, problem = next(iter(problems.items()))
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ExperimentError(f"privacy: client {client}{more}: {problem}")
