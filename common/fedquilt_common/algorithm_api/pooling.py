"""What an algorithm declares about averages: whether their means are all that its server half reads of the replies."""

from __future__ import annotations

from typing import Final

from fedquilt_common.algorithm_api.hooks import ask_number, ask_problem, doubt_promise
from fedquilt_common.algorithm_api.records import Reply, declaration_of

SUB_MODELS: Final = "clients train different sub-models, and each entry has a mean over its own clients"
_UNDECLARED: Final = "it does not declare that it reads nothing of the replies but their mean"
_SERVER_METHODS: Final = ("round", "merge", "evaluate_clients", "aggregate_labels")


def pooling_problem(algorithm: object) -> str:
    """Return why an algorithm cannot work from the mean of its replies; empty if it can.

    Args:
        algorithm: its ``declares.pooled`` decides, unless it has a method ``pooling_problem`` that returns the reason.
            Neither counts if it is inherited and the class has a ``round``, ``merge``, ``evaluate_clients`` or
            ``aggregate_labels`` of its own.
    """
    declared = declaration_of(algorithm).pooled
    problem = ask_problem(algorithm, "pooling_problem", default=_UNDECLARED if declared is None else declared)
    doubt = "may read more of the replies than their mean"
    return problem or doubt_promise(algorithm, ("declares", "pooling_problem"), _SERVER_METHODS, doubt)


def reply_weight(algorithm: object, reply: Reply) -> float:
    """Return the weight of a reply in the mean: from the algorithm's method ``reply_weight``, else ``reply.weight``."""
    return ask_number(algorithm, "reply_weight", reply, default=reply.weight)
