"""Cuts long sleeps to 0.1 s in each Python that starts with this folder on PYTHONPATH, to show what waits cost."""

import time

LONGEST = 0.1
_sleep = time.sleep


def short_sleep(seconds: float) -> None:
    """Sleep at most ``LONGEST`` seconds."""
    _sleep(min(seconds, LONGEST))


time.sleep = short_sleep
