"""The fields that have a few allowed values, and what an algorithm declares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest

from fedquilt_common.algorithm_api import Declaration, declaration_of
from fedquilt_common.algorithms import ALGORITHMS, make_algorithm
from fedquilt_common.algorithms.choices import check_choices, choices
from fedquilt_common.errors import ExperimentError
from fedquilt_common.training.losses import DISTILLATION

if TYPE_CHECKING:
    from pathlib import Path

Mood = Literal["calm", "wild", "lost"]


@dataclass(frozen=True)
class Own:
    mood: Mood = "calm"
    size: Literal["small", "large"] | None = None
    limit: Literal["none"] | int = "none"
    name: str = "x"
    kinds: dict[str, int] = field(default_factory=dict)
    shared: ClassVar[Literal["a"]] = "a"


def test_choices_come_from_the_type_hints() -> None:
    assert choices(Own) == {"mood": ("calm", "wild", "lost"), "size": ("small", "large", None)}
    check_choices(Own("wild", "large", 7, "y", {"a": 1}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mood": "angry"}, "mood = 'angry': must be calm, wild or lost"),
        ({"size": "huge"}, "size = 'huge': must be small or large, or left out"),
        ({"mood": ["calm"]}, r"mood = \['calm'\]: must be calm, wild or lost"),
    ],
)
def test_a_wrong_value_is_named_with_the_choices(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_choices(Own(**fields))


def test_every_algorithm_is_checked_where_it_is_made() -> None:
    with pytest.raises(ValueError, match=r"^order = 'x': must be labels-first or local-first$"):
        make_algorithm("fedmd", {"order": "x"}, ())
    with pytest.raises(ValueError, match=r"^kd_optimiser = 'lion': must be sgd, .* or rmsprop-keras, or left out$"):
        make_algorithm("fedmd", {"kd_optimiser": "lion"}, ())


def test_a_users_own_algorithm_is_checked_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "algorithms_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ExperimentError, match=r"ValueError: mood = 'angry': must be calm or wild \(.*\); correct"):
        make_algorithm("algorithms_of_a_user:Own", {"mood": "angry"}, ("algorithms_of_a_user",))


OWN = """
from dataclasses import dataclass
from typing import Literal

@dataclass(frozen=True)
class Own:
    mood: Literal["calm", "wild"] = "calm"
"""


@dataclass(frozen=True)
class Unresolved:
    mood: Mood = "calm"
    other: Path | None = None


class NoDataclass:
    pass


@pytest.mark.parametrize("algorithm", [Unresolved("angry"), NoDataclass()])  # type: ignore[arg-type]
def test_what_has_no_hints_is_not_checked(algorithm: Any) -> None:
    """A user's own algorithm may import types for annotations only, or be no dataclass."""
    check_choices(algorithm)


def test_the_losses_to_choose_from_are_those_there_are() -> None:
    assert set(choices(ALGORITHMS["fedmd"])["kd_loss"]) == set(DISTILLATION)


def test_an_algorithm_without_a_declaration_is_evaluated_by_the_coordinator() -> None:
    assert declaration_of(NoDataclass()) == Declaration() == Declaration(None, False, False, False, None, None, None)
    assert declaration_of(make_algorithm("ditto", {"lambda": 0.1}, ())).holdout == 0.25
    assert declaration_of(make_algorithm("fedmd", {}, ())) == Declaration(
        0.0,
        own_models=True,
        any_models=True,
        tasks=frozenset({"classification"}),
        privacy="",
        pooled="",
        private_memory=True,
        public=True,
    )


@pytest.mark.parametrize("name", ["fedmd", "fedakd", "cfedakd", "dsfl", "feddf", "fedet", "fedrod", "fedreb"])
def test_what_needs_classes_declares_it(name: str) -> None:
    assert declaration_of(make_algorithm(name, {}, ())).tasks == frozenset({"classification"})
