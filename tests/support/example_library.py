"""A folder of runs that look real: for the tests of the page in a browser and for the documentation's pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import example_runs
from tests.support.recorded_runs import START, learning, make_round, write_run

from fedquilt_common.files.locking import lock_folder
from fedquilt_server.history.log_files import csv_text
from fedquilt_server.runs.journal import Journal
from fedquilt_server.runs.tables import boards_csv
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult

HOUR = 3600.0
SWEEP = {"fedavg": (0.93, 4.0, 1.0), "fedprox": (0.94, 4.5, 1.05), "fedrolex": (0.91, 6.0, 0.6)}
"""Algorithm -> final accuracy, rounds to learn, and size of its sub-models."""


def rounds(count: int, best: float, pace: float, seed: int = 1, size: float = 1.0) -> list[RoundResult]:
    """Return rounds of a run that learns, with the same numbers each time."""
    return [
        make_round(
            number, accuracy, loss=0.2 + 2.1 * math.exp(-number / pace) + 0.02 * math.sin(seed + number),
            seconds=8.4 * size + math.sin(number), train_seconds=6.5 * size, sending_seconds=0.4,
            averaging_seconds=0.2, evaluate_seconds=0.3, bytes_down=int(412_000 * size), bytes_up=int(3.2e6 * size),
            joules=310 * size, replies=8, clients=8, asked=8,
        )
        for number, accuracy in enumerate(learning(count, best, pace, seed), 1)
    ]  # fmt: skip


def write_parts(folder: Path, boards: int) -> None:
    """Write the boards, replies, events and coverage of a run with so many boards."""
    shown = example_runs.running(boards)
    replies = [row for row in shown.reply_rows if row.closed_at is not None]
    (folder / "boards.csv").write_text(boards_csv(shown.boards))
    columns = list(ReplyRow.model_fields)
    (folder / "replies.csv").write_text(",".join(columns) + "\n" + csv_text(replies, columns))
    (folder / "events.jsonl").write_text("".join(e.model_dump_json() + "\n" for e in reversed(shown.events)))
    assert shown.coverage is not None
    (folder / "coverage.json").write_text(shown.coverage.model_dump_json())


def write_example(folder: Path, hours_ago: float, boards: int, rows: list[RoundResult], **changes: Any) -> Path:
    """Write a run folder with all its files, of a run that began some hours before ``START``."""
    write_run(folder, rounds=rows, **changes)
    journal = Journal(folder / "journal.sqlite")
    journal.set_meta("started_at", str(START - HOUR * hours_ago))
    journal.close()
    write_parts(folder, boards)
    return folder


@contextmanager
def example_library(folder: Path) -> Iterator[None]:
    """Write the runs. One of them goes on until the block ends."""
    for place, (algorithm, (best, pace, size)) in enumerate(SWEEP.items()):
        for seed in (1, 2):
            rows, name = rounds(20, best - 0.01 * seed, pace, seed, size), {"name": "digits-algorithms"}
            run = folder / "digits-algorithms" / f"{algorithm}-seed={seed}"
            write_example(run, 48 - place - 0.2 * seed, 6, rows, algorithm=algorithm, seed=seed, **name)
    reason = "the loss is nan since round 3; lower training.lr, or clip the gradients"
    write_example(folder / "digits-lr", 3, 4, rounds(3, 0.3, 4), name="digits-lr", status="failed", reason=reason,
                  exit_code=7, settings={"rounds": 20, "training": {"lr": 1e30}})  # fmt: skip
    write_example(folder / "har-phones", 0.5, 8, rounds(41, 0.88, 9), algorithm="fedper", seed=3, name="har-phones",
                  dataset="uci-har", status="running", exit_code=None, settings={"rounds": 100})  # fmt: skip
    write_example(folder / "night", 9, 8, rounds(17, 0.7, 9), algorithm="fedakd", seed=11, name="night",
                  dataset="fashion-mnist", status="running", exit_code=None, settings={"rounds": 60})  # fmt: skip
    reason = "somebody has stopped the run; the same command resumes it. It ended after round 120"
    write_example(folder / "cifar10-resnet", 20, 14, rounds(120, 0.78, 30, size=4), algorithm="heterofl", seed=7,
                  name="cifar10-resnet", dataset="cifar10", status="stopped", reason=reason,
                  settings={"rounds": 200})  # fmt: skip
    damaged = write_example(folder / "power-cut", 70, 4, rounds(5, 0.7, 2), name="power-cut")
    (damaged / "result.json").write_text('{"name": 3')
    with lock_folder(folder / "har-phones"):
        yield
