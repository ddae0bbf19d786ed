"""Limits that the coordinator has for agents, and the relay of a site for its boards."""

from __future__ import annotations

from typing import Final

MOST_AGENTS: Final = 10_000
"""Most agents that may be connected at a time."""
MOST_CLAIMS: Final = 1_000_000
"""Most clients that all agents may claim together."""
TRANSFERS_PER_CLIENT: Final = 3
"""Limit of a client's unfinished replies; one more replaces an older one."""
REFUSED_KEPT: Final = 10_000
"""Limit of refused transfers that are remembered: each is charged once."""
