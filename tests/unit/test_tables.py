"""Tables of cases: every failing case is named, with what failed and where."""

from __future__ import annotations

import pytest
from tests.support.tables import each


@each([(1, "one"), (2, "two")], lambda number, word: word)
def test_a_table_of_cases_is_a_test(number: int, word: str) -> None:
    assert len(word) == 3


def test_each_failing_case_is_named_with_line_and_reason() -> None:
    @each(lambda: range(4))
    def check(number: int) -> None:
        with pytest.raises(ZeroDivisionError):
            assert 1 / (number % 2) != 1.0

    with pytest.raises(AssertionError) as caught:
        check()
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("2 of 4 cases:")
    assert [line for line in rest if line.startswith(("1: ", "3: "))]
    assert f"{__file__}:" in rest[0]
    assert "assert" in str(caught.value)


def test_a_case_that_does_not_raise_fails() -> None:
    @each(["quiet"], str)
    def check(word: str) -> None:
        with pytest.raises(ValueError, match="loud"):
            word.upper()

    with pytest.raises(AssertionError, match=r"quiet: .*DID NOT RAISE"):
        check()


def test_a_table_without_cases_fails() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        each([])(lambda: None)()
