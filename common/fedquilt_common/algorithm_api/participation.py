"""Whether the number of clients that take part in a round suits an algorithm."""

from __future__ import annotations


def participation_problem(algorithm: object, per_round: int) -> str:
    """Return why the number of clients in a round does not suit an algorithm; empty if it does.

    Args:
        algorithm: its optional method ``participation_problem`` takes the number, and returns ``<key> = <value>:
            <why>; <what to do>``.
        per_round: clients that take part in a round (``participation.per_round``).
    """
    own = getattr(algorithm, "participation_problem", None)
    return str(own(per_round)) if own is not None else ""
