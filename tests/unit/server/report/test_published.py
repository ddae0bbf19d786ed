"""Published figures beside the runs' own."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.recorded_runs import make_round, near, write_run

from fedquilt_common.errors import ExperimentError
from fedquilt_server.library.recorded_run import RecordedRun, read_run
from fedquilt_server.report.groups import group_runs
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.report.published import figure_of, published_tables, read_published
from fedquilt_server.sweep.manifest import PublishedTable

FILE = """
- source: The FedReb thesis, table 5.5
  note: means of five runs
  figures:
    - case: {algorithm.name: fedavg, data.set: digits}
      scores: {best_accuracy: 0.83, accuracy: 0.8}
    - {case: {algorithm.name: fedreb}, scores: {best_accuracy: 0.87}}
"""


def runs(folder: Path) -> list[RecordedRun]:
    accuracies = {1: (0.5, 0.9, 0.8), 2: (0.5, 0.7, 0.6)}
    return [read_run(write_run(folder / str(seed), values, seed=seed)) for seed, values in accuracies.items()]


def test_each_figure_is_beside_the_mean_of_its_group(tmp_path: Path) -> None:
    file = tmp_path / "paper.yaml"
    file.write_text(FILE)
    table = published_tables(read_published(file), group_runs(runs(tmp_path)))[0]
    keys = ["best_accuracy_published", "best_accuracy", "best_accuracy_difference", "last_10_accuracy",
            "accuracy_published", "accuracy", "accuracy_difference"]  # fmt: skip
    assert [column.key for column in table.columns] == ["case", "group", "runs", *keys]
    first, missing = table.rows
    deviation = near(math.sqrt(0.02))
    ours, last = (MeanDeviation(near(mean), deviation, 2) for mean in (0.8, 0.7))
    late = MeanDeviation(near(2 / 3), near(math.sqrt(2) / 15), 2)
    assert first == ("fedavg, digits", "fedavg", 2, 0.83, ours, near(-0.03), late, 0.8, last, near(-0.1))
    assert missing == ("fedreb", "no run", 0, 0.87, None, None, None, None, None, None)


def test_a_table_that_two_sweeps_name_occurs_once(tmp_path: Path) -> None:
    figures = [{"case": {"seed": 1}, "scores": {"accuracy": 0.5}}]
    first, again, other = (PublishedTable.model_validate({"source": one, "figures": figures}) for one in "xxy")
    found = published_tables([first, again, other], group_runs(runs(tmp_path)))
    assert [(table.name, table.title) for table in found] == [
        ("published-1", "Published: x"), ("published-2", "Published: y"),
    ]  # fmt: skip


def test_a_case_can_name_the_label_of_a_sweeps_axis(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    swept = RecordedRun(run.folder, "a", "finished", result=run.result, settings=run.settings, case={"width": "half"})
    table = PublishedTable.model_validate(
        {"source": "x", "figures": [{"case": {"width": "half"}, "scores": {"accuracy": 0.5}}]}
    )
    assert published_tables([table], group_runs([swept]))[0].rows[0][2] == 1


def test_one_table_needs_no_list_and_a_sweep_file_will_do(tmp_path: Path) -> None:
    file = tmp_path / "paper.yaml"
    table = "{source: x, figures: [{case: {a: 1}, scores: {accuracy: 0.5}}]}"
    for text in (table, f"name: sweep\nvary: {{seed: [1]}}\npublished: [{table}]"):
        file.write_text(text)
        assert [found.source for found in read_published(file)] == ["x"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be a list"),
        ("- {source: x}", "0.figures: is missing; add it"),
        ("- {source: x, figures: [{case: {a: 1}, scores: {accuracy: high}}]}", "scores.accuracy"),
        ("- {source: x, figures: [], colour: red}", "colour"),
        ("- [", "paper.yaml:1"),
        ("- {source: x, figures: [{case: {a: 1}, scores: {best_accuracy: 97.5}}]}", "best_accuracy: 97.5 is no share"),
        ("- {source: x, figures: [{case: {a: 1}, scores: {gain_accuracy: -2.7}}]}", "gain_accuracy: -2.7 is no share"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "paper.yaml"
    file.write_text(text)
    with pytest.raises(ExperimentError) as caught:
        read_published(file)
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


ROUNDS: list[dict[str, Any]] = [
    {"accuracy": 0.6, "client_accuracy": {"0": 0.4, "1": 0.8}, "waste_rate": 0.2, "personal_accuracy": 0.9},
    {"accuracy": 0.5, "client_accuracy": {"0": 0.3, "1": 0.5}, "waste_rate": 0.4, "personal_accuracy": 0.7},
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", 0.5), ("best_accuracy", 0.6), ("best_personal_accuracy", 0.9), ("client_accuracy", 0.4),
        ("best_client_accuracy", 0.6), ("waste_rate", 0.3), ("bytes_down", 123.0), ("global_sha256", None),
        ("nothing", None), ("average_accuracy", None),
        ("seconds", 4.0), ("bytes", 6000.0), ("last_10_accuracy", 0.55), ("last_10_r2", None),
    ],
)  # fmt: skip
def test_scores_of_the_published_benchmarks(name: str, value: float | None, tmp_path: Path) -> None:
    rounds = [make_round(number, row.pop("accuracy"), **row) for number, row in enumerate(map(dict, ROUNDS), 1)]
    run = read_run(write_run(tmp_path / "a", rounds=rounds, final={"bytes_down": 123, "global_sha256": "ab"}))
    assert figure_of(run, name) == (None if value is None else near(value))


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_accuracy_at_50", 0.5), ("best_accuracy_at_60", 0.8), ("best_accuracy_at_99", 0.8), ("best_r2_at_50", None)],
)
def test_a_score_over_the_first_part_of_the_rounds(name: str, value: float | None, tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", (0.4, 0.5, 0.8, 0.7), final={"best_accuracy_at_50": 1.0}))
    assert figure_of(run, name) == (None if value is None else near(value))
    table = PublishedTable.model_validate({"source": "x", "figures": [{"case": {"seed": 1}, "scores": {name: 0.4}}]})
    kinds = {column.kind for column in published_tables([table], group_runs([run]))[0].columns[3:]}
    assert kinds == ({"number"} if "r2" in name else {"share", "points"})


def test_a_gain_is_measured_against_the_most_similar_run_with_the_same_seed(tmp_path: Path) -> None:
    cases = [("alone", "iid", "mse", 1, 0.5), ("alone", "noniid", "mse", 1, 0.4), ("alone", "iid", "mse", 2, 0.6),
             ("fedmd", "iid", "kl", 1, 0.8), ("fedmd", "iid", "kl", 2, 0.7), ("fedmd", "noniid", "kl", 1, 0.45),
             ("fedmd", "noniid", "kl", 3, 0.9)]  # fmt: skip
    swept = []
    for number, (method, shares, loss, seed, accuracy) in enumerate(cases):
        run = read_run(write_run(tmp_path / str(number), [accuracy], algorithm=method, seed=seed))
        swept.append(replace(run, case={"method": method, "shares": shares, "loss": loss}))
    figures = [{"case": {"method": "fedmd", "shares": shares}, "scores": {"gain_accuracy": 0.2}}
               for shares in ("iid", "noniid")]  # fmt: skip
    table = PublishedTable.model_validate({"source": "x", "baseline": {"method": "alone"}, "figures": figures})
    found = published_tables([table], group_runs(swept))[0]
    assert [row[4] for row in found.rows] == [
        MeanDeviation(near(0.2), near(math.sqrt(0.02)), 2), MeanDeviation(near(0.05), None, 1),
    ]  # fmt: skip
    assert [column.kind for column in found.columns[3:]] == ["points"] * 3


def test_the_last_ten_stand_beside_a_best_gain_too(tmp_path: Path) -> None:
    cases = {"alone": [0.5], "fedmd": [0.6, 0.9, 0.6]}
    swept = [replace(read_run(write_run(tmp_path / name, values, algorithm=name)), case={"method": name})
             for name, values in cases.items()]  # fmt: skip
    figures = [{"case": {"method": "fedmd"}, "scores": {"gain_best_accuracy": 0.3}}]
    table = PublishedTable.model_validate({"source": "x", "baseline": {"method": "alone"}, "figures": figures})
    found = published_tables([table], group_runs(swept))[0]
    assert [(column.key, column.kind) for column in found.columns[-1:]] == [("gain_last_10_accuracy", "points")]
    assert (found.rows[0][4], found.rows[0][6]) == (
        MeanDeviation(near(0.4), None, 1),
        MeanDeviation(near(0.2), None, 1),
    )


def test_null_in_a_case_is_a_run_without_that_section(tmp_path: Path) -> None:
    plain, private = (read_run(write_run(tmp_path / name)) for name in ("plain", "private"))
    sections = [("privacy", None), ("privacy", {"mode": "central", "epsilon": 20})]
    made = [replace(run, settings={**(run.settings or {}), key: value})
            for run, (key, value) in zip((plain, private), sections, strict=True)]  # fmt: skip
    figures = [{"case": {"privacy": None, "algorithm.name": "fedavg"}, "scores": {"accuracy": 0.5}}]
    table = PublishedTable.model_validate({"source": "x", "figures": figures})
    (row,) = published_tables([table], group_runs(made))[0].rows
    assert row[1:3] == ("fedavg", 1)


def test_what_no_run_has_is_named_because_it_may_be_misspelt(tmp_path: Path) -> None:
    figures = [
        {"case": {"data.set": "digits"}, "scores": {"accuracy": 97.5, "acuracy": 0.5}},
        {"case": {"data.sett": "digits"}, "scores": {"best_r2": 0.9}},
        {
            "case": {"privacy": None, "algorithm.compress": None, "fleet.0.link": None, "privcy": None, "seed.x": None},
            "scores": {"accuracy": 0.5},
        },
    ]
    table = PublishedTable.model_validate({"source": "x", "note": "One run.", "figures": figures})
    text = published_tables([table], group_runs(runs(tmp_path)))[0].meaning
    assert "One run. No run has the setting 'data.sett'" in text
    assert re.findall("the setting '(.*?)'", text) == ["data.sett", "privcy", "seed.x"]
    assert "No run has the score 'acuracy': it is misspelt, or these runs do not measure it." in text
    assert "Accuracy: 97.5 is no share" in text
    assert "'best_r2'" not in text
    assert "'accuracy'" not in text
