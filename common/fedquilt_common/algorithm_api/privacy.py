"""What an algorithm declares about differential privacy."""

from __future__ import annotations

from typing import Final

from fedquilt_common.algorithm_api.hooks import ask_count, ask_problem, doubt_promise
from fedquilt_common.algorithm_api.records import CLIENT_METHODS, declaration_of

_UNDECLARED: Final = (
    "it does not declare that its replies reveal nothing of the samples besides what its training reveals"
)


def privacy_problem(algorithm: object) -> str:
    """Return why an algorithm cannot train with differential privacy; empty if it can.

    Args:
        algorithm: its ``declares.privacy`` decides, unless it has a method ``privacy_problem`` that returns the reason.
            Neither counts if it is inherited and the class has a ``work``, ``train`` or ``test`` of its own.
    """
    declared = declaration_of(algorithm).privacy
    problem = ask_problem(algorithm, "privacy_problem", default=_UNDECLARED if declared is None else declared)
    doubt = "may reveal more of the samples than training does"
    return problem or doubt_promise(algorithm, ("declares", "privacy_problem"), CLIENT_METHODS, doubt)


def private_passes(algorithm: object, epochs: int, rounds: int) -> int:
    """Return how many passes over its samples a client makes at most in ``rounds`` rounds, from its first one.

    Args:
        algorithm: it makes ``epochs`` in each round, unless its method ``private_passes`` returns another number.
        epochs: ``training.epochs`` of the client.
        rounds: rounds in which the client may still take part.
    """
    return ask_count(algorithm, "private_passes", epochs, rounds, default=epochs * rounds)
