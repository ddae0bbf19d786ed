"""A user's own algorithm that cannot be made is an invalid experiment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fedquilt_common.algorithm_api import Round, advance_round
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.errors import AlgorithmError, ExperimentError, PayloadError

MODULE = """
from dataclasses import dataclass, field
from fedquilt import FedAvg
from fedquilt_common.errors import PayloadError

@dataclass(frozen=True)
class Own(FedAvg):
    how: str = ""

    def __post_init__(self):
        if self.how == "payload":
            raise PayloadError("no")
        assert self.how != "bare"
        if self.how:
            raise {"value": ValueError, "run": RuntimeError}[self.how]("no")

@dataclass(frozen=True)
class Need(Own):
    lambda_: float = field(kw_only=True)

def nothing():
    pass
"""
CASES = {
    "a field that it refuses": (
        {"how": "value"},
        "algorithm 'my_own:Own' cannot be made with algorithm.how = 'value': ValueError: no (my_own.py line 15)",
    ),
    "an error in __post_init__": ({"how": "run"}, "RuntimeError: no (my_own.py line 15)"),
    "an error without a text": ({"how": "bare"}, "with algorithm.how = 'bare': AssertionError (my_own.py line 13)"),
    "a mistake in __post_init__": ({"how": "x"}, "KeyError: 'x' (my_own.py line 15)"),
    "a field that it lacks": (
        {"howe": 1},
        "algorithm.howe: the algorithm 'my_own:Own' has no such field; did you mean 'how'?",
    ),
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_own:Own"


@pytest.mark.parametrize(("fields", "words"), CASES.values(), ids=CASES)
def test_it_cannot_be_made(own: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        make_algorithm(own, fields, ("*",))
    assert words in str(caught.value)
    assert caught.value.exit_code == 4


def test_what_is_no_algorithm_is_refused(own: str) -> None:
    module, _, _ = own.partition(":")
    with pytest.raises(ExperimentError, match="function has no method init, round, evaluate, work; write it"):
        make_algorithm(f"{module}:dataclass", {}, ("*",))


def test_a_factory_must_return_something(own: str) -> None:
    assert own
    with pytest.raises(ExperimentError, match=r"algorithm 'my_own:nothing': the factory returned None; let it return"):
        make_algorithm("my_own:nothing", {}, ("*",))


def test_a_round_that_asks_nobody_without_end_is_ended() -> None:
    def endless() -> Round:
        while True:
            yield {}

    with pytest.raises(AlgorithmError, match="yielded 10,000 empty mappings in a row"):
        advance_round(endless(), None)


def test_a_field_that_it_requires_is_named(own: str) -> None:
    assert own
    with pytest.raises(ExperimentError, match=r"^algorithm\.lambda is missing: the algorithm 'my_own:Need' requires"):
        make_algorithm("my_own:Need", {"how": ""}, ("*",))
    make_algorithm("my_own:Need", {"lambda": 1.0}, ("*",))


def test_what_it_declares_is_a_declaration(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    make_algorithm(own, {}, ("*",))
    monkeypatch.setattr(sys.modules["my_own"].Own, "declares", {"holdout": 0.2})
    with pytest.raises(ExperimentError, match=r"declares is the dict {'holdout': 0.2}; it must be a Declaration"):
        make_algorithm(own, {}, ("*",))


def test_errors_of_fedquilt_pass_unchanged(own: str) -> None:
    with pytest.raises(PayloadError, match=r"^no$"):
        make_algorithm(own, {"how": "payload"}, ("*",))
