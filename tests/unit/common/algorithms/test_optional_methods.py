"""An optional method of a user's algorithm that fails, or returns something else, is named with its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedquilt_common.algorithm_api import (
    Reply,
    find_level,
    loss_problem,
    participation_problem,
    parts_to_try,
    pooling_problem,
    privacy_problem,
    private_passes,
    replies_per_round,
    reply_weight,
    training_problem,
)
from fedquilt_common.errors import AlgorithmError, SliceError


class Own:
    """An algorithm all of whose optional methods answer with ``answer``."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def _reply(self, *_: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    participation_problem = training_problem = loss_problem = pooling_problem = privacy_problem = _reply
    replies_per_round = private_passes = reply_weight = find_level = parts_to_try = _reply


ANYTHING = cast("Any", SimpleNamespace(keep_optimiser=False))
TEXTS: dict[str, Callable[[object], str]] = {
    "participation_problem": lambda one: participation_problem(one, 3),
    "training_problem": lambda one: training_problem(one, ANYTHING),
    "loss_problem": lambda one: loss_problem(one, ANYTHING),
    "pooling_problem": pooling_problem,
    "privacy_problem": privacy_problem,
}
NUMBERS: dict[str, Callable[[object], float]] = {
    "replies_per_round": lambda one: replies_per_round(one, 3),
    "private_passes": lambda one: private_passes(one, 2, 3),
    "reply_weight": lambda one: reply_weight(one, Reply({}, 5.0)),
}
OTHERS: dict[str, Callable[[object], object]] = {
    "find_level": lambda one: find_level(one, "M1", ANYTHING),
    "parts_to_try": lambda one: parts_to_try(one, ANYTHING),
}


@pytest.mark.parametrize("name", [*TEXTS, *NUMBERS, *OTHERS])
def test_an_error_in_it_has_its_method_and_its_line(name: str) -> None:
    call = {**TEXTS, **NUMBERS, **OTHERS}[name]
    with pytest.raises(AlgorithmError, match=rf":Own\.{name} \(test_optional_methods\.py line \d+\): KeyError"):
        call(Own(KeyError("x")))
    with pytest.raises(AlgorithmError, match=rf":Own\.{name}: the code called sys\.exit\(3\)"):
        call(Own(SystemExit(3)))


@pytest.mark.parametrize("name", TEXTS)
def test_a_problem_is_a_text(name: str) -> None:
    assert (TEXTS[name](Own("")), TEXTS[name](Own("lr = 0: raise it"))) == ("", "lr = 0: raise it")
    for wrong in (None, 7):
        with pytest.raises(AlgorithmError, match=rf"\.{name} returned .*; return the problem as a text, or an empty t"):
            TEXTS[name](Own(wrong))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_cannot_be_is_refused(name: str) -> None:
    assert NUMBERS[name](Own(2)) == 2
    kind = "finite number of at least 0" if name == "reply_weight" else "whole number of at least 1"
    for wrong in (math.nan, math.inf, -1, "2", None, *(() if name == "reply_weight" else (0, 2.5))):
        with pytest.raises(AlgorithmError, match=rf"\.{name} returned .*; return a {kind}"):
            NUMBERS[name](Own(wrong))


def test_without_the_methods_the_usual_answers_count() -> None:
    plain = object()
    assert (participation_problem(plain, 3), training_problem(plain, ANYTHING), loss_problem(plain, ANYTHING)) == (
        "", "", "",
    )  # fmt: skip
    assert (replies_per_round(plain, 3), private_passes(plain, 2, 3), reply_weight(plain, Reply({}, 5.0))) == (
        3,
        6,
        5.0,
    )
    assert parts_to_try(plain, ANYTHING) == ()


def test_errors_of_fedquilt_pass_as_they_are() -> None:
    with pytest.raises(SliceError, match=r"^narrow$"):
        parts_to_try(Own(SliceError("narrow")), ANYTHING)
