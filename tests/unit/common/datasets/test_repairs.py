"""Notes on repairs, as sentences need them."""

from __future__ import annotations

from fedquilt_common.datasets.repairs import describe_repairs


def test_only_what_was_needed_is_noted() -> None:
    repairs = {"rows out of order sorted": 2, "empty files left out": 1, "packets lost": 0}
    assert describe_repairs(repairs) == ["1 empty file left out", "2 rows out of order sorted"]


def test_a_noun_that_loses_more_than_an_s() -> None:
    assert describe_repairs({"boxes cut at the image's edge": 1}) == ["1 box cut at the image's edge"]
