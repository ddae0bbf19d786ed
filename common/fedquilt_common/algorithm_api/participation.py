"""Whether the number of clients that take part in a round suits an algorithm, and how many of them reply in one."""

from __future__ import annotations

from fedquilt_common.algorithm_api.hooks import ask_count, ask_problem


def participation_problem(algorithm: object, per_round: int) -> str:
    """Return why the number of clients in a round does not suit an algorithm; empty if it does.

    Args:
        algorithm: its optional method ``participation_problem`` takes the number, and returns ``<key> = <value>:
            <why>; <what to do>``.
        per_round: clients that take part in a round (``participation.per_round``).
    """
    return ask_problem(algorithm, "participation_problem", per_round)


def replies_per_round(algorithm: object, per_round: int) -> int:
    """Return how many clients train for a round's result.

    Args:
        algorithm: its optional method ``replies_per_round`` takes the number of clients, and returns fewer where a
            round ends with the first replies (``Ask``).
        per_round: clients that take part in a round (``participation.per_round``).
    """
    return ask_count(algorithm, "replies_per_round", per_round, default=per_round)
