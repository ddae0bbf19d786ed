"""The privacy that a run has spent, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fedquilt_server.status.results import PrivacySpent
from fedquilt_server.status.units import DASH


def most_spent(rows: Sequence[PrivacySpent]) -> PrivacySpent | None:
    """Return the row with the largest epsilon; None if no client has replied yet."""
    known = [row for row in rows if row.epsilon is not None]
    return max(known, key=lambda row: row.epsilon or 0.0, default=None)


def describe_privacy(rows: Sequence[PrivacySpent]) -> str:
    """Return ``epsilon 19.99 of 20 at delta 1e-5, 10 clients, 2 declined``; empty without privacy."""
    if not rows:
        return ""
    most, declined = most_spent(rows), sum(bool(row.declined) for row in rows)
    spent = "unknown" if most is None else f"{epsilon_text(most.epsilon)} of {describe_limit(most)}"
    clients = f"{len(rows)} client{'s' if len(rows) > 1 else ''}"
    return f"epsilon {spent}, {clients}{f', {declined} declined' if declined else ''}"


def describe_limit(row: PrivacySpent) -> str:
    """Return ``20 at delta 1e-5``."""
    return f"{epsilon_text(row.budget)} at delta {delta_text(row.delta)}"


def describe_declined(rows: Sequence[PrivacySpent]) -> str:
    """Return the first client that declines with its reason, and how many others do; empty without any."""
    declined = [row for row in rows if row.declined]
    if not declined:
        return ""
    more = len(declined) - 1
    others = f" (and {more} more client{'s' if more > 1 else ''})" if more else ""
    return f"client {declined[0].client}: {declined[0].declined}{others}"


def epsilon_text(epsilon: float | None) -> str:
    """Format an epsilon with four digits; a dash for an unknown one."""
    return DASH if epsilon is None else f"{epsilon:.4g}"


def delta_text(delta: float) -> str:
    """Format a delta: ``0.001``, ``1e-5``."""
    return f"{delta:g}".replace("e-0", "e-")
