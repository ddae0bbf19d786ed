"""What an algorithm declares about differential privacy."""

from __future__ import annotations

from fedquilt_common.algorithm_api.hooks import ask_count, ask_problem
from fedquilt_common.algorithm_api.records import declaration_of

_UNDECLARED = "it does not declare that its replies reveal nothing of the samples besides what its training reveals"


def privacy_problem(algorithm: object) -> str:
    """Return why an algorithm cannot train with differential privacy; empty if it can.

    Args:
        algorithm: its ``declares.privacy`` decides, unless it has a method ``privacy_problem`` that returns the reason.
    """
    declared = declaration_of(algorithm).privacy
    return ask_problem(algorithm, "privacy_problem", default=_UNDECLARED if declared is None else declared)


def private_passes(algorithm: object, epochs: int, rounds: int) -> int:
    """Return how many passes over its samples a client makes at most in ``rounds`` rounds, from its first one.

    Args:
        algorithm: it makes ``epochs`` in each round, unless its method ``private_passes`` returns another number.
        epochs: ``training.epochs`` of the client.
        rounds: rounds in which the client may still take part.
    """
    return ask_count(algorithm, "private_passes", epochs, rounds, default=epochs * rounds)
