"""Which ends of a process count as failed starts, on this machine and on the nodes of a cluster."""

from __future__ import annotations

import signal

import pytest

from fedquilt_server.simulate.failed_starts import FAILED_STARTS, SAME_ERROR_LIFE, SHORT_LIFE, FailedStarts


def take_ends(*ends: tuple[int, float, str]) -> list[bool]:
    """Return after each end whether the process is given up."""
    starts, found = FailedStarts(), []
    for end in ends:
        starts.add_end(*end)
        found.append(starts.are_too_many)
    return found


@pytest.mark.parametrize("end", [(1, 0.0, "no broker"), (3, SHORT_LIFE - 1, ""), (-signal.SIGSEGV, 1.0, "")])
def test_a_process_that_fails_at_each_start_is_given_up(end: tuple[int, float, str]) -> None:
    assert take_ends(*[end] * FAILED_STARTS) == [False] * (FAILED_STARTS - 1) + [True]


@pytest.mark.parametrize(
    "end", [(1, SHORT_LIFE, ""), (1, SAME_ERROR_LIFE, "no broker"), (-signal.SIGKILL, 0.0, "no broker"), (0, 0.0, "")]
)
def test_one_that_has_lived_long_or_was_killed_is_not(end: tuple[int, float, str]) -> None:
    assert not any(take_ends(*[end] * (FAILED_STARTS + 2)))


@pytest.mark.parametrize("other", [(1, SHORT_LIFE, "no memory"), (-signal.SIGTERM, 0.0, "no broker")])
def test_any_other_end_starts_the_count_anew(other: tuple[int, float, str]) -> None:
    failed = [(1, 0.0, "no broker")] * (FAILED_STARTS - 1)
    assert not any(take_ends(*failed, other, *failed))


def test_the_same_error_again_and_again_counts_after_a_longer_life() -> None:
    same = [(1, SAME_ERROR_LIFE - 1, "no room")] * (FAILED_STARTS + 1)
    assert take_ends(*same) == [False] * FAILED_STARTS + [True]  # the first one could have been any error
    killed = (-signal.SIGKILL, 1.0, "no room")
    assert take_ends(killed, *same) == [False, *take_ends(*same)]
    others = [(1, SAME_ERROR_LIFE - 1, f"no room for {number}") for number in range(FAILED_STARTS + 2)]
    assert not any(take_ends(*others))
