"""The memory of training in reports: runs in several precisions side by side."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.recorded_runs import near, write_run

from fedquilt_server.report.contents import ReportContents, make_contents
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.report.sources import gather_runs
from fedquilt_server.report.text_formats import to_markdown
from fedquilt_server.status.training_memory import TrainingMemory

MB = 1_000_000


def measured(client: int, precision: str, mean: float, most: int, gpu: int | None = None) -> TrainingMemory:
    return TrainingMemory(
        client=client, precision=precision, trainings=3, memory_peak=most, memory_peak_mean=mean,
        gpu_memory_peak=gpu, gpu_memory_peak_mean=gpu,
    )  # fmt: skip


def contents(folder: Path) -> ReportContents:
    for precision, gpu in (("fp32", 40 * MB), ("fp16", 20 * MB)):
        for seed in (1, 2):
            rows = [measured(c, precision, (300.0 + seed + c) * MB, (310 + seed + c) * MB, gpu) for c in (0, 1)]
            settings = {"training": {"precision": precision}}
            write_run(folder / f"{precision}-{seed}", seed=seed, settings=settings, memory=rows)
    return make_contents(gather_runs([folder]))


def test_each_precision_has_its_memory(tmp_path: Path) -> None:
    table = contents(tmp_path).tables["memory"]
    assert [row[:4] for row in table.rows] == [("precision=fp16", "fp16", 2, 2), ("precision=fp32", "fp32", 2, 2)]
    mean, most, gpu_mean, gpu_most = table.rows[0][4:]
    assert isinstance(mean, MeanDeviation)
    assert (mean.mean, mean.n) == (near(302.0 * MB), 2)
    assert isinstance(most, MeanDeviation)
    assert most.mean == near(312.5 * MB)
    for cell in (gpu_mean, gpu_most):
        assert isinstance(cell, MeanDeviation)
        assert cell.mean == near(20.0 * MB)


def test_each_client_is_in_the_csv_file_only(tmp_path: Path) -> None:
    made = contents(tmp_path)
    assert [row[:5] for row in made.tables["memory-clients"].rows][:2] == [
        ("precision=fp16", 1, "0", "fp16", 3), ("precision=fp16", 1, "1", "fp16", 3),
    ]  # fmt: skip
    text = to_markdown(made)
    assert "Memory of training" in text
    assert "Memory of training by client" not in text


def test_runs_without_measurements_have_no_table(tmp_path: Path) -> None:
    write_run(tmp_path / "old")
    raw = json.loads((tmp_path / "old" / "result.json").read_text())
    del raw["memory"]  # as earlier versions wrote it
    (tmp_path / "old" / "result.json").write_text(json.dumps(raw))
    assert not {"memory", "memory-clients"} & make_contents(gather_runs([tmp_path])).tables.keys()
