"""The row of a finished round holds what the algorithm reports and measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fedquilt_common.algorithm_api import State
from fedquilt_common.errors import AlgorithmError
from fedquilt_server.round.events import Checkpoint, Tally
from fedquilt_server.runs.journal import Traffic
from fedquilt_server.runs.result_files import round_result
from fedquilt_server.runs.stopwatch import Stopwatch
from fedquilt_server.runs.tables import rounds_csv
from fedquilt_server.status.results import RoundResult


def row(report: Mapping[str, Any], scores: Mapping[str, float] | None = None) -> RoundResult:
    done = Checkpoint(2, State({}, report=report), Tally(1, 1, 0, 0, 0, 0.0, 0.0), "", 1.0)
    return round_result(done, Stopwatch(Traffic()), 1.0, Traffic(), 0, scores)


def test_names_of_the_algorithms_own_are_kept_beside_those_that_have_a_field() -> None:
    found = row({"trained": {"0": 0.5}, "client_r2": {"1": 0.25}, "ages": [1, 2], "note": {"a": None}})
    assert (found.trained, found.client_scores) == ({"0": 0.5}, {"1": 0.25})
    assert found.report == {"ages": [1, 2], "note": {"a": None}}
    assert RoundResult.model_validate_json(found.model_dump_json()) == found


def test_they_are_no_columns_of_the_table_of_rounds() -> None:
    assert "ages" not in rounds_csv([row({"ages": [1, 2]})])


def test_a_row_without_them_as_earlier_versions_wrote_it() -> None:
    text = row({}).model_dump_json(exclude={"report"})
    assert RoundResult.model_validate_json(text).report == {}


@pytest.mark.parametrize(
    "report", [{"trained": 3}, {"trained": {"0": [1]}}, {"waste_rate": "much"}, {"client_r2": [1]}], ids=str
)
def test_a_value_of_another_type_than_its_field(report: dict[str, Any]) -> None:
    with pytest.raises(AlgorithmError, match=r"^round 2: State\.report cannot have .*choose another name than"):
        row(report)


def test_scores_that_are_not_finite_are_left_out_but_of_the_columns() -> None:
    nan = float("nan")
    measured = {
        "accuracy": 0.5,
        "loss": nan,
        "f1": nan,
        "recall": 0.25,
        "class_accuracy_0": nan,
        "class_accuracy_x": 1.0,
    }
    found = row({}, {**measured, "class_accuracy_x": 1.0})
    assert found.scores == {"recall": 0.25, "class_accuracy_x": 1.0}
    assert found.class_accuracy == {}
    again = RoundResult.model_validate_json(found.model_dump_json())
    assert (again.loss, again.accuracy, again.scores) == (None, 0.5, found.scores)
