"""What each algorithm declares, which values its fields allow, and the paper that it cites."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from tests.contract.cases import CASES
from tests.contract.federation import make
from tests.support.tables import each

from fedquilt_common.algorithm_api import Declaration
from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.algorithms.choices import choices

CHOICES = [(name, field, value) for name in sorted(ALGORITHMS) for field, value in choices(ALGORITHMS[name]).items()]


@each(CHOICES)
def test_it_refuses_a_value_that_is_none_of_the_choices(name: str, field: str, allowed: tuple[Any, ...]) -> None:
    fields = dict(CASES[name].fields)
    for value in ("neither", None, 1, ["sgd"]):
        if value in allowed:
            continue
        with pytest.raises(ValueError, match=rf"^{field} = {re.escape(repr(value))}: must be ") as error:
            make(name, {**fields, field: value})
        assert all(str(choice) in str(error.value) for choice in allowed if choice is not None)


@each(ALGORITHMS)
def test_it_declares_how_it_is_evaluated(name: str) -> None:
    declared = ALGORITHMS[name].declares
    assert type(declared) is Declaration
    assert declared.holdout is None or 0 <= declared.holdout < 1
    assert declared.holdout is not None or not declared.own_models  # a model that only a client has, only it can test


@each(ALGORITHMS)
def test_it_declares_whether_it_uses_public_samples(name: str) -> None:
    assert ALGORITHMS[name].declares.public is bool(CASES[name].public)


PAPER = re.compile(r'[A-Z]\w+( et al\.| and [A-Z]\w+)?, "[^"]{10,}", [A-Z][\w &.,-]* (19|20)\d\d\b')


@each(ALGORITHMS)
def test_its_file_cites_the_paper(name: str) -> None:
    """As: McMahan et al., "Title", AISTATS 2017."""
    words = sys.modules[ALGORITHMS[name].__module__].__doc__ or ""
    assert PAPER.search(" ".join(words.split()))
