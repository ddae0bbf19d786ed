"""The tables of a run folder have one plain value in each cell."""

from __future__ import annotations

import csv

from fedquilt_server.runs.result_files import final_row, score_fields
from fedquilt_server.runs.tables import clients_csv, rounds_csv
from fedquilt_server.status.results import RoundResult

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}


def round_row(number: int, **values: object) -> RoundResult:
    return RoundResult.model_validate({**ZEROS, "round": number, **values})


ROUNDS = [
    round_row(1, accuracy=0.5, trained={"0": 0.5, "10": "S1"}, client_accuracy={"2": 0.25}),
    round_row(2, label_bytes={"0": {"down": 648, "up": 640}}, scores={"average_accuracy": 0.75}),
]


def test_a_round_has_only_columns_that_some_round_fills() -> None:
    first, second = csv.DictReader(rounds_csv(ROUNDS).splitlines())
    assert (first["accuracy"], second["accuracy"], second["average_accuracy"]) == ("0.5", "", "0.75")
    assert not {"r2", "trained", "scores", "label_bytes", "client_accuracy", "missing"} & set(first)
    assert rounds_csv([]) == "round\n"


def test_clients_have_a_table_of_their_own_in_natural_order() -> None:
    cells = [tuple(row.values()) for row in csv.DictReader(clients_csv(ROUNDS).splitlines())]
    assert cells == [
        ("1", "0", "0.5", "", "", "", ""), ("1", "2", "", "0.25", "", "", ""), ("1", "10", "S1", "", "", "", ""),
        ("2", "0", "", "", "", "648", "640"),
    ]  # fmt: skip


def test_clients_without_an_accuracy_have_the_main_metric_of_their_task() -> None:
    row = round_row(1, **score_fields({"r2": 0.5, "mae": 2.0}), client_scores={"3": -0.5})
    assert (row.r2, row.scores) == (0.5, {"mae": 2.0})
    (client,) = csv.DictReader(clients_csv([row]).splitlines())
    assert (client["client"], client["accuracy"], client["score"]) == ("3", "", "-0.5")


def test_the_last_row_of_result_json_has_each_score_of_the_round_that_was_evaluated_last() -> None:
    rows = [round_row(1, accuracy=0.9, scores={"macro_f1": 0.8}), round_row(2), round_row(3)]
    final = final_row(rows, 0)
    assert (final["accuracy"], final["macro_f1"]) == (0.9, 0.8)


def test_the_rate_leaves_out_the_time_in_which_the_coordinator_did_not_run() -> None:
    final = final_row([round_row(1, seconds=2.0), round_row(2, seconds=32.0, away_seconds=30.0)], 0)
    assert (final["seconds"], final["rounds_per_second"]) == (34.0, 0.5)


def test_the_best_value_of_an_error_is_the_least() -> None:
    rows = [round_row(n, **score_fields(scores)) for n, scores in enumerate((
        {"r2": 0.1, "mae": 3.0, "personal_r2": 0.3}, {"r2": 0.3, "mae": 2.0, "personal_r2": 0.2},
        {"r2": 0.2, "mae": 2.5, "personal_r2": 0.1},
    ), 1)]  # fmt: skip
    final = final_row(rows, 0)
    assert [final[name] for name in ("r2", "best_r2", "mae", "best_mae", "best_personal_r2")] == [
        0.2,
        0.3,
        2.5,
        2.0,
        0.3,
    ]
