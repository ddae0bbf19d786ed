"""Reports in each format, from run folders to files."""

from __future__ import annotations

import csv
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.support.packages import needs
from tests.support.recorded_runs import make_round, near, write_boards, write_run

from fedquilt_common.errors import ExperimentError, PackageMissingError, RunFolderError
from fedquilt_server.report.make_report import ReportSettings, WrittenReport, make_report
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.report.summary import describe_runs
from fedquilt_server.report.terminal_tables import print_report_summary
from fedquilt_server.sweep.manifest import PublishedTable, SweepManifest, SweptRun, write_manifest

HOSTILE = "<script>alert('1')</script>&_$x$|*"
needs("matplotlib", "matplotlib is not installed: use make test")


def write_sweep(folder: Path, changed: dict[str, Any] | None = None) -> Path:
    """Write a sweep of two algorithms and two seeds; one run has failed, one was not started."""
    scores = {("fedavg", 1): (0.5, 0.8), ("fedavg", 2): (0.6, 0.9), ("fedprox", 1): (0.4, 0.7)}
    runs = []
    for (name, seed), accuracies in scores.items():
        label = f"{name}-{seed}"
        write_run(folder / label, accuracies, algorithm=name, seed=seed)
        runs.append(SweptRun(folder=label, settings={"algorithm.name": name, "seed": seed}, label=label,
                             status="finished", exit_code=0))  # fmt: skip
    failed = SweptRun(folder="fedprox-2", settings={"algorithm.name": "fedprox", "seed": 2}, label="x",
                      status="failed", reason=f"no data: {HOSTILE}", exit_code=5)  # fmt: skip
    pending = SweptRun(folder="fedprox-3", settings={"algorithm.name": "fedprox", "seed": 3}, label="y")
    figures = [{"case": {"algorithm.name": "fedavg"}, "scores": {"accuracy": 0.9}}]
    table = PublishedTable.model_validate({"source": "A paper", "figures": figures})
    vary: dict[str, list[bool | int | float | str | None]] = {
        "algorithm.name": ["fedavg", "fedprox"],
        "seed": [1, 2, 3],
    }
    all_runs = [*runs, failed, pending]
    write_manifest(folder, SweepManifest(
        name="two algorithms", vary=vary, published=[table], changed=changed or {}, runs=all_runs,
    ))  # fmt: skip
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Page(HTMLParser):
    """The texts of a page, and what it would load or run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.text = ""
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [value for key, value in attrs if key == "id" and value]
        if tag in ("script", "iframe", "link", "object", "embed"):
            self.loads.append(tag)
        for key in ("src", "href", "xlink:href"):
            value = found.get(key) or "#"
            if not value.startswith(("#", "data:image/png")):
                self.loads.append(value)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_sweep_with_a_failed_run_is_averaged_without_it(tmp_path: Path) -> None:
    made = make_report([write_sweep(tmp_path / "sweep")], ReportSettings(format="csv"))
    assert made.files[0].parent == tmp_path / "sweep" / "report"
    scores = rows_of(tmp_path / "sweep" / "report" / "report-scores.csv")
    assert [(row["group"], row["runs"], row["seeds"]) for row in scores] == [
        ("fedavg", "2", "1, 2"),
        ("fedprox", "1", "1"),
    ]
    first, second = scores
    assert float(first["final_accuracy"]) == near(0.85)
    assert float(first["final_accuracy_deviation"]) == near(math.sqrt(0.005))
    assert float(first["last_10_accuracy"]) == near(0.7)
    assert (first["final_accuracy_n"], second["final_accuracy_deviation"]) == ("2", "")
    excluded = rows_of(tmp_path / "sweep" / "report" / "report-not-averaged.csv")
    assert [(row["run"], row["status"]) for row in excluded] == [("fedprox-2", "failed"), ("fedprox-3", "pending")]
    assert excluded[0]["reason"] == f"no data: {HOSTILE}"


def test_runs_of_different_tasks_have_scores_but_no_common_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "classes", rounds=[make_round(1, 0.5, loss=6.0), make_round(2, 0.8, loss=1.0)])
    numbers = [make_round(n, None, r2=0.2, loss=2.0) for n in (1, 2)]
    write_run(tmp_path / "numbers", rounds=numbers, settings={"data": {"set": "aep"}})
    contents = make_report([tmp_path], ReportSettings(tmp_path / "out", "csv")).contents
    assert contents.score is None
    assert {"scores", "costs"} <= contents.tables.keys()
    assert contents.tables.keys().isdisjoint({"curves", "target"})
    assert any("different learning tasks" in line for line in describe_runs(contents))
    print_report_summary(WrittenReport(contents, ()))
    shown = capsys.readouterr().out
    assert "final accuracy" in shown
    assert "different learning tasks" in shown
    with pytest.raises(ExperimentError, match=r"^--target 0.5: the runs have different learning tasks"):
        make_report([tmp_path], ReportSettings(tmp_path / "out", "csv", target=0.5))


def test_scores_of_different_tests_are_noted(tmp_path: Path) -> None:
    tested: dict[str, Any] = {"scores": {"tested_samples": 40.0}}
    write_run(tmp_path / "a", [0.9])
    write_run(tmp_path / "b", rounds=[make_round(1, 0.7, global_accuracy=0.7, **tested)], algorithm="fedper")
    write_run(tmp_path / "c", rounds=[make_round(1, 0.8, personal_accuracy=0.8, **tested)], algorithm="alone")
    both = {"scores": {"tested_samples": 40.0, "local_accuracy": 0.6}}
    write_run(tmp_path / "d", rounds=[make_round(1, 0.8, **both)], algorithm="heterofl")
    contents = make_report([tmp_path], ReportSettings(tmp_path / "out", "csv")).contents
    assert contents.notes == (
        "The scores are of different tests: the global model on the test split (fedavg; heterofl), the global model on "
        "samples that the clients keep (fedper), the clients' own models on samples that they keep (alone)",
    )


def test_settings_other_than_those_of_the_published_figures_are_noted(tmp_path: Path) -> None:
    changed = {"rounds": 2, "data.partition": {"scheme": "uniform"}}
    made = make_report([write_sweep(tmp_path / "sweep", changed)], ReportSettings(tmp_path / "out", "md"))
    note = (
        f"{tmp_path / 'sweep'}: the published figures belong to the settings of the sweep's file; these runs have "
        'rounds = 2, data.partition = {"scheme": "uniform"}'
    )
    assert made.contents.notes[0] == note
    plain = make_report([write_sweep(tmp_path / "plain")], ReportSettings(tmp_path / "out", "md"))
    assert "published" not in " ".join(plain.contents.notes)


def test_a_run_that_its_budget_ended_is_noted(tmp_path: Path) -> None:
    reason = "the budget of 1.0 MB is used up after round 4"
    write_run(tmp_path / "a", reason=reason)
    write_run(tmp_path / "b", seed=2)
    contents = make_report([tmp_path], ReportSettings(tmp_path / "out", "csv")).contents
    assert contents.notes == (f"a: {reason}",)


def test_the_page_is_one_file_without_scripts_and_with_unique_identifiers(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep")
    write_boards(sweep / "fedavg-1", {HOSTILE: [0, 1], "weak-2": [2], "weak-10": [3]}, 8)
    write_boards(sweep / "fedprox-1", {"strong-1": [0]}, 2)
    made = make_report([sweep], ReportSettings(tmp_path / "out.html"))
    page = Page(made.files[0])
    assert made.files[0] == tmp_path / "out.html"
    assert page.loads == []
    assert "<script>" not in page.source
    assert len(page.ids) == len(set(page.ids))
    for words in ("3 of 5 runs are averaged, in 2 groups.", f"no data: {HOSTILE}", "Published: A paper", "weak-10"):
        assert words in page.text
    assert page.text.index("weak-2") < page.text.index("weak-10")
    beside = {file.name for file in made.files[1:]}
    assert {"out-curve-rounds.png", "out-timeline-1.png", "out-coverage-1.png", "out-clients.png", "out-scores.csv",
            "out-curves.csv", "out-boards.csv", "out-published-1.csv"} <= beside  # fmt: skip
    assert (tmp_path / "out-curve-rounds.png").read_bytes().startswith(b"\x89PNG")
    assert "out-curve-joules.png" not in beside


def test_markdown_and_latex_escape_what_would_be_markup(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep")
    text = make_report([sweep], ReportSettings(format="md")).files[0].read_text()
    assert "| fedavg | 2 | 1, 2 | 85.00 \N{PLUS-MINUS SIGN} 7.07 |" in text
    assert r"\<script\>alert('1')\</script\>&\_$x$\|\*" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(re.fullmatch(r"\|.*[^\\]\|", line) for line in lines)
    latex = make_report([sweep], ReportSettings(format="latex")).files[0].read_text()
    assert r"fedavg & 2 & 1, 2 & 85.00 $\pm$ 7.07 &" in latex
    assert r"\textless{}script\textgreater{}alert('1')\textless{}/script\textgreater{}\&\_\$x\$|*" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") > 3


@pytest.mark.parametrize("kind", ["html", "md", "latex", "csv"])
def test_runs_without_any_round_or_score_make_a_report_too(kind: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "empty", [])
    write_run(tmp_path / "a" / "blind", [None, None])
    (write_run(tmp_path / "a" / "broken") / "result.json").write_text("{")
    made = make_report([tmp_path / "a"], ReportSettings(tmp_path / "out", kind))
    assert made.contents.counted == 1
    excluded = {str(row[0]): row[1] for row in made.contents.tables["not-averaged"].rows}
    assert excluded == {"broken": "damaged", "empty": "finished"}


def test_a_report_of_failed_runs_only_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", status="failed", reason="no broker", exit_code=3)
    made = make_report([folder], ReportSettings(tmp_path / "out"))
    page = Page(made.files[0])
    assert "0 of 1 run is averaged, in 0 groups." in page.text
    assert "no broker (exit code 3)" in page.text
    assert set(made.contents.tables) == {"runs", "not-averaged"}


def test_impossible_numbers_are_noted_and_do_not_reach_a_mean(tmp_path: Path) -> None:
    good = [make_round(1, 0.5), make_round(2, 0.6)]
    bad = [make_round(1, 0.5), make_round(2, 7.0, bytes_up=-(10**9) - 1000)]
    write_run(tmp_path / "a" / "1", rounds=good, seed=1)
    write_run(tmp_path / "a" / "2", rounds=bad, seed=2)
    made = make_report([tmp_path / "a"], ReportSettings(tmp_path / "out", "md"))
    row, best = made.contents.tables["scores"].rows[0], MeanDeviation(0.55, near(math.sqrt(0.005)), 2)
    assert (*row[1:4], row[5]) == (2, "1, 2", MeanDeviation(0.6, None, 1), best)
    line = "| fedavg | 2 | 1, 2 | 60.00 (n = 1) | 52.50 \N{PLUS-MINUS SIGN} 3.54 | 55.00 \N{PLUS-MINUS SIGN} 7.07 |"
    assert line in made.files[0].read_text()
    assert made.contents.tables["costs"].rows[0][6] == MeanDeviation(4000.0, None, 1)
    notes = ("2: accuracy is 7 in round 2: not used", "2: bytes is -1e+09 in round 2: not used")
    assert made.contents.notes == notes


def test_missing_replies_are_noted_and_never_counted_as_none(tmp_path: Path) -> None:
    rounds = [make_round(number, 0.5, replies=3) for number in (1, 2)]
    folder = write_run(tmp_path / "a", rounds=rounds)
    write_boards(folder, {"pi": [0, 1, 2]}, 2)
    replies = folder / "replies.csv"
    whole = replies.read_text()

    def counts() -> tuple[object, ...]:
        return made().contents.tables["boards"].rows[0][3:7]

    def made() -> WrittenReport:
        return make_report([folder], ReportSettings(tmp_path / "out", "csv"))

    assert (counts(), made().contents.notes) == ((6, 0, 0, 0), ())
    replies.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    (note,) = made().contents.notes
    assert "has 5 accepted replies and result.json 6" in note
    for change in (lambda: replies.write_text(""), replies.unlink):
        change()
        assert counts() == (None,) * 4


def test_runs_of_the_same_name_have_labels_of_their_own(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_run(tmp_path / name / "run", seed=1)
    made = make_report([tmp_path], ReportSettings(tmp_path / "out", "csv"))
    assert [row["run"] for row in rows_of(tmp_path / "out" / "report-runs.csv")] == ["x/run", "y/run"]
    assert made.contents.notes == ("fedavg: 2 runs have seed 1 (x/run, y/run): each of them counts",)


def test_a_note_about_several_runs_is_one_note(tmp_path: Path) -> None:
    for seed in range(1, 8):
        rounds = [make_round(1, 0.5, joules=3.0, joules_estimated=True, joules_measured=False)]
        write_run(tmp_path / "a" / str(seed), rounds=rounds, seed=seed)
    words = "the energy is estimated, not measured"
    made = make_report([tmp_path / "a"], ReportSettings(tmp_path / "out", "csv"))
    assert made.contents.notes == (f"all 7 runs: {words}",)
    write_run(tmp_path / "a" / "8", [0.5], seed=8)
    made = make_report([tmp_path / "a"], ReportSettings(tmp_path / "out", "csv"))
    assert made.contents.notes == (f"1, 2, 3, 4, 5 and 2 more: {words}",)


@pytest.mark.parametrize("huge", [1e12, 1e299])
def test_huge_numbers_are_drawn_and_written(huge: float, tmp_path: Path) -> None:
    for seed in (1, 2):
        rounds = [make_round(n, 0.5, loss=huge * n * seed, seconds=huge, bytes_up=10**15) for n in (1, 2)]
        write_run(tmp_path / "a" / str(seed), rounds=rounds, seed=seed)
    made = make_report([tmp_path / "a"], ReportSettings(tmp_path / "out"))
    assert "nan" not in Page(made.files[0]).text.lower()


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(ExperimentError, match="--format pdf: choose one of html, md, latex, csv"):
        make_report([run], ReportSettings(format="pdf"))
    with pytest.raises(ExperimentError, match="--target 90: the accuracy must be within 0 and 1"):
        make_report([run], ReportSettings(format="csv", target=90.0))
    with pytest.raises(ExperimentError, match="name a folder"):
        make_report([run], ReportSettings(tmp_path / "file.txt", "md"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="holds no run"):
        make_report([run, tmp_path / "empty"], ReportSettings())
    with pytest.raises(RunFolderError, match="there is no such folder"):
        make_report([tmp_path / "nowhere"], ReportSettings())


def test_without_matplotlib_the_tables_still_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = write_run(tmp_path / "a")
    with pytest.raises(PackageMissingError, match=r"fedquilt\[report\].*--format md, latex or csv"):
        make_report([run], ReportSettings(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    for kind in ("md", "latex", "csv"):
        assert make_report([run], ReportSettings(tmp_path / "out", kind)).files


def test_the_clients_of_a_regression_are_compared_by_r2(tmp_path: Path) -> None:
    rounds = [make_round(1, None, r2=0.2, client_scores={"0": -0.5, "1": 0.5}), make_round(2, None, r2=0.4)]
    write_run(tmp_path / "run", rounds=rounds)
    write_run(tmp_path / "other", algorithm="fedprox", rounds=[make_round(1, None, scores={"map50": 0.5})])
    made = make_report([tmp_path / "run", tmp_path / "other"], ReportSettings(tmp_path / "out.csv", "csv"))
    (clients,) = made.contents.clients
    assert (clients.source, clients.values) == ("own model", (-0.5, 0.5))
    table = made.contents.tables["clients"]
    assert "its last R2" in table.meaning
    assert {column.kind for column in table.columns if column.key in ("lowest", "mean")} == {"number"}
