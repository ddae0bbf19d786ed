"""How long a coordinator that starts waits for its broker."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Final

from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_common.wire.transport import Connected, Disconnected, Incoming

BROKER_SECONDS: Final = 60.0
"""How long a broker may take to answer: one that starts at the same time, with a machine or a container, needs some."""
STEP_SECONDS: Final = 0.1
"""Time between two questions whether the process stops."""


def await_broker(
    inbox: queue.SimpleQueue[Incoming], take: Callable[[Incoming], None], wait: float, should_stop: Callable[[], bool]
) -> Connected | None:
    """Wait for the first connection.

    Args:
        inbox: what the transport delivers.
        take: called with everything that arrives, but for the reason of an error.
        wait: seconds for which the broker may be silent or unreachable.
        should_stop: whether to give up.

    Returns:
        The connection; None if ``should_stop`` ended the wait.

    Raises:
        BrokerUnreachableError: no broker answers in time, or it refuses the coordinator, which is not waited for.
    """
    end, last = time.monotonic() + wait, Disconnected("no answer from the broker of --broker")
    while True:
        try:
            incoming = inbox.get(timeout=STEP_SECONDS)
        except queue.Empty:
            if should_stop():
                return None
            if time.monotonic() >= end:
                raise _give_up(last, wait) from None
            continue
        if isinstance(incoming, Disconnected):
            last = incoming
            if last.refused or time.monotonic() >= end:
                raise _give_up(last, wait)
        take(incoming)
        if isinstance(incoming, Connected):
            return incoming


def _give_up(last: Disconnected, wait: float) -> BrokerUnreachableError:
    longer = "" if last.refused else f"; for a broker that starts later, raise --broker-wait ({wait:g} s)"
    return BrokerUnreachableError(f"{last.reason}. {last.advice}{longer}")
