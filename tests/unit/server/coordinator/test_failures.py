"""Which of the failing clients are shown."""

from __future__ import annotations

import pytest

from fedquilt_server.coordinator.failures import pick_failures


@pytest.mark.parametrize(
    ("reasons", "shown"),
    [
        ({}, {}),
        ({1: "memory"}, {1: "memory"}),
        ({0: "a", 1: "a", 2: "a", 3: "b"}, {0: "a", 1: "a", 3: "b"}),
        ({0: "a", 1: "a", 5: "b", 7: "c", 9: "d"}, {0: "a", 5: "b", 7: "c"}),
        ({0: "1.5 MiB", 1: "2 MiB", 2: "3 MiB", 9: "b"}, {0: "1.5 MiB", 1: "2 MiB", 9: "b"}),
    ],
)
def test_a_reason_that_one_client_has_is_not_hidden_by_one_that_many_have(
    reasons: dict[int, str], shown: dict[int, str]
) -> None:
    found = pick_failures(reasons, 3)
    assert found == shown
    assert list(found) == sorted(found)
