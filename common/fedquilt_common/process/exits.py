"""How a process ended, in words."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Describe how a process ended, such as "ended with exit code 1" or "was killed by SIGTERM (Terminated)".

    Args:
        code: its exit code; a negative one names the signal that ended it.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    return f"was killed by {_signal_name(-code)} ({signal.strsignal(-code)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
