"""Training that diverges is noticed, and training that is slow at first is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from fedquilt_server.status.divergence import DivergenceDetector
from fedquilt_server.status.results import RoundResult

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
Scores = Sequence[tuple[float | None, float | None]]
"""Loss and accuracy of each round."""


def take(scores: Scores, classes: int | None) -> tuple[list[int], str]:
    """Return the rounds in which divergence began, and the last warning."""
    detector = DivergenceDetector(classes)
    rows = [
        RoundResult.model_validate({**ZEROS, "round": i, "loss": loss, "accuracy": accuracy})
        for i, (loss, accuracy) in enumerate(scores, 1)
    ]
    return [row.round for row in rows if detector.take(row)], detector.warning


@pytest.mark.parametrize(
    ("scores", "classes", "began", "words"),
    [
        ([(1.8e9, 0.1), (1.9e9, 0.1)], 10, [1], "over 10 times that of a model that guesses (2.303)"),
        ([(2.0, 0.3), (math.nan, 0.1)], 10, [2], "The loss is nan after round 2"),
        ([(2.0, 0.3), (math.inf, 0.1), (None, None)], 10, [2], "after round 2"),
        ([(5.0, None), (0.5, None), (5.1, None)], None, [3], "the lowest so far (0.5)"),
        ([(2.3, 0.1)] * 5, 10, [5], "chance level (1 of 10 classes) in the last 5 evaluations, up to round 5"),
        ([(2.3, 0.1)] * 6, 10, [5], "in the last 6 evaluations"),
    ],
)
def test_divergence_is_reported_once_with_its_reason(
    scores: Scores, classes: int | None, began: list[int], words: str
) -> None:
    found, warning = take(scores, classes)
    assert found == began
    assert words in warning


@pytest.mark.parametrize(
    ("scores", "classes"),
    [
        ([(20.0, 0.1), (9.0, 0.1), (6.0, 0.1), (4.0, 0.1), (2.0, 0.2)], 10),  # a hard start
        ([(None, None)] * 20, 10),
        ([(2.3, 0.1), (2.3, 0.13)] * 5, 10),
        ([(1e9, None), (1e8, None)], None),  # the scale of a regression's loss is its own
        ([(None, 0.0)] * 9, 0),  # a run that does not train
    ],
)
def test_ordinary_training_is_not_divergence(scores: Scores, classes: int | None) -> None:
    assert take(scores, classes) == ([], "")


@pytest.mark.parametrize(
    ("wastes", "began", "warning"),
    [
        ([1, 1], [1], "No client has trained in rounds 1 to 2"),
        ([1], [1], "No client has trained in round 1"),
        ([1, 0.4], [1], ""),
        ([0.4, 1, 1, 1], [4], "No client has trained in rounds 2 to 4"),
        ([0.4, 1, 1, 0.9, 1, 1], [], ""),
        ([None, 0], [], ""),
    ],
)
def test_rounds_in_which_nobody_trains_are_reported(
    wastes: Sequence[float | None], began: list[int], warning: str
) -> None:
    detector = DivergenceDetector(10)
    rows = [
        RoundResult.model_validate({**ZEROS, "round": i, "loss": None, "waste_rate": waste})
        for i, waste in enumerate(wastes, 1)
    ]
    assert [row.round for row in rows if detector.take(row)] == began
    assert detector.warning.startswith(warning)
    assert bool(detector.warning) == bool(warning)


def test_training_that_recovers_is_no_longer_reported() -> None:
    assert take([(1e9, 0.1), (2.0, 0.5)], 10) == ([1], "")
    assert take([(1e9, 0.1), (2.0, 0.5), (1e9, 0.1)], 10)[0] == [1, 3]
