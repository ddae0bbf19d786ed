"""The privacy that a run has spent, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fedquilt_common.plurals import counted
from fedquilt_server.status.results import PrivacySpent, RoundResult
from fedquilt_server.status.units import DASH


def most_spent(rows: Sequence[PrivacySpent]) -> PrivacySpent | None:
    """Return the row with the largest epsilon; None if no client has replied yet."""
    known = [row for row in rows if row.epsilon is not None and row.budget is not None]
    return max(known, key=lambda row: row.epsilon or 0.0, default=None)


def describe_privacy(rows: Sequence[PrivacySpent]) -> str:
    """Return ``largest epsilon 19.99 of 20 at delta 1e-5, 9 of 10 clients have reported one, 2 declined``.

    Only ``2 clients declined`` if no client trains with local differential privacy; empty without any of both.
    """
    private, declined = sum(row.budget is not None for row in rows), sum(bool(row.declined) for row in rows)
    if not private:
        return f"{counted(declined, 'client')} declined" if declined else ""
    return f"{_describe_spent(rows, private)}{f', {declined} declined' if declined else ''}"


def _describe_spent(rows: Sequence[PrivacySpent], private: int) -> str:
    most, known = most_spent(rows), sum(row.epsilon is not None for row in rows if row.budget is not None)
    count = f"{known} of {counted(private, 'client')} {'has' if private == 1 else 'have'} reported one"
    if most is None:
        return f"epsilon: {count}"
    return f"largest epsilon {epsilon_text(most.epsilon)} of {describe_limit(most)}, {count}"


def describe_central(rounds: Sequence[RoundResult]) -> str:
    """Return what the coordinator's noise has spent, in the form of ``describe_privacy``; empty without such noise."""
    spent = rounds[-1].central_privacy if rounds else None
    if spent is None:
        return ""
    limit = f"{epsilon_text(spent.budget)} at delta {delta_text(spent.delta)}"
    known = f"{epsilon_text(spent.epsilon_known)} for those who know which clients took part"
    return f"epsilon {epsilon_text(spent.epsilon)} of {limit} for each client, by the coordinator's noise; {known}"


def describe_limit(row: PrivacySpent) -> str:
    """Return ``20 at delta 1e-5``."""
    return f"{epsilon_text(row.budget)} at delta {delta_text(row.delta)}"


def describe_declined(rows: Sequence[PrivacySpent]) -> str:
    """Return the first client that declines with its reason, and how many others do; empty without any."""
    declined = [row for row in rows if row.declined]
    if not declined:
        return ""
    more = len(declined) - 1
    others = f" (and {more} more {'clients' if more > 1 else 'client'})" if more else ""
    return f"client {declined[0].client}: {declined[0].declined}{others}"


def epsilon_text(epsilon: float | None) -> str:
    """Format an epsilon with four digits; a dash for an unknown one."""
    return DASH if epsilon is None else f"{epsilon:.4g}"


def delta_text(delta: float | None) -> str:
    """Format a delta: ``0.001``, ``1e-5``; a dash for an unknown one."""
    return DASH if delta is None else f"{delta:g}".replace("e-0", "e-")
