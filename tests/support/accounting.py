"""Fewer orders for the accountant of differential privacy: the bounds are looser, and cost a tenth of the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from tests.support import warm

from fedquilt_common.privacy import accountant

FEW_ORDERS = partial(warm.assign, "opacus.accountants:RDPAccountant.DEFAULT_ALPHAS", [*range(2, 64)])
"""For ``before`` of a process that a test starts."""


@contextmanager
def few_orders() -> Iterator[None]:
    """Let the accountant use whole orders only, in this process and those that it forks."""
    from opacus.accountants import RDPAccountant  # slow to load: not for every selection

    with mock.patch.object(RDPAccountant, "DEFAULT_ALPHAS", [*range(2, 64)]):
        accountant._divergence.cache_clear()
        try:
            yield
        finally:
            accountant._divergence.cache_clear()
