"""Turns what a client has worked out into the reply that leaves the board: masked, or with its weight in the mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fedquilt_common.algorithm_api import Algorithm, Reply, Task, pooling_problem, reply_weight
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment

if TYPE_CHECKING:
    from fedquilt_common.secure_aggregation.client_half import SecureContext


def answer(
    ctx: SecureContext,
    experiment: Experiment,
    algorithm: Algorithm,
    task: Task,
    work: Callable[[Task], Reply],
    *,
    has_secrets: bool,
) -> Reply:
    """Do a task and return the reply.

    Args:
        ctx: of the task.
        experiment: of the run.
        algorithm: of the experiment.
        task: of the algorithm, or of secure aggregation.
        work: does a task of the algorithm.
        has_secrets: whether the client can mask; it cannot in a replay.

    Raises:
        FedquiltError: the task cannot be done, or asks for more than may leave the board.
    """
    if experiment.secure_aggregation:
        return _mask(ctx, algorithm, task, work, has_secrets=has_secrets)
    if not experiment.exact_sums or pooling_problem(algorithm):
        return work(task)
    from fedquilt_common.partial_sums.exact_rounds import weigh_reply

    return weigh_reply(algorithm, task, work(task))


def _mask(
    ctx: SecureContext, algorithm: Algorithm, task: Task, work: Callable[[Task], Reply], *, has_secrets: bool
) -> Reply:
    from fedquilt_common.secure_aggregation.client_half import SecureClient

    if not has_secrets:
        raise ExperimentError(
            "a replay cannot mask replies again, because the secrets are gone: use those that the run has kept "
            "(coordinator --keep-replies)"
        )
    return SecureClient(ctx, partial(reply_weight, algorithm)).do(task, work)
