"""The tables of docs/personal.md with several seeds are those of the runs in benchmarks/results."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


def last_ten(curve: Sequence[float]) -> float:
    return statistics.fmean(curve[-10:])


COLUMNS: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "G, best": ("global_accuracy", max), "G, last 10": ("global_accuracy", last_ten),
    "P, best": ("personal_accuracy", max), "P, last 10": ("personal_accuracy", last_ten),
}  # fmt: skip
DATA = {"Fashion-MNIST": "fashion-mnist", "CIFAR-10": "cifar10"}
PRECISION = 0.056
"""Half of the last digit, and what four decimals of a recorded score may add."""
Changes = frozenset[str]
"""The values of --set of a command."""
Curves = dict[str, list[float]]


@dataclass(frozen=True)
class Row:
    """A row of a table: the command's changes, data set, method, and the printed mean and deviation by column."""

    changes: Changes
    data: str
    method: str
    cells: dict[str, tuple[float, float]]


def values_after(command: str, option: str) -> list[str]:
    words = shlex.split(command)
    return [value for name, value in itertools.pairwise(words) if name == option]


def rows_of_table(lines: Sequence[str], commands: Sequence[str]) -> Iterator[Row]:
    """Yield the rows; a row whose second cell does not name its method has that of its place in the commands."""
    head, _, *body = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in lines]
    chosen = [text.removeprefix("method=") for command in commands for text in values_after(command, "--vary")]
    methods = [method for text in chosen if "=" not in text for method in text.split(",")]
    seen: dict[str, int] = defaultdict(int)
    for row in body:
        named = row[1].strip("`")
        method = named if named in methods else methods[seen[row[0]]]
        seen[row[0]] += 1
        texts = {name: row[head.index(name)].split(" ± ") for name in COLUMNS}
        cells = {name: (float(mean), float(deviation)) for name, (mean, deviation) in texts.items()}
        yield Row(frozenset(values_after(commands[0], "--set")), DATA[row[0]], method, cells)


def printed_rows() -> list[Row]:
    """Return the rows with deviations of each table below a command of fedreb_small.yaml."""
    text = (ROOT / "docs/personal.md").read_text(encoding="utf-8")
    found = list[Row]()
    for block, between, table in re.findall(r"```sh\n([^`]*)```\n((?:(?!\||```).*\n)*)((?:\|.*\n)+)", text):
        commands = [line for line in block.replace("\\\n", " ").splitlines() if "fedreb_small.yaml" in line]
        if commands and " ± " in table:
            assert len(between.splitlines()) < 8, "the table belongs to its command"
            found += rows_of_table(table.splitlines(), commands)
    return found


def recorded_curves() -> dict[tuple[Changes, str, str], dict[int, list[Curves]]]:
    """Return the curves of each seed, by changes, data set and method; later records of the same run come later."""
    found: dict[tuple[Changes, str, str], dict[int, list[Curves]]] = defaultdict(lambda: defaultdict(list))
    for line in (ROOT / "benchmarks/results/fedreb_small.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        settings = record["settings"]
        key = (frozenset(values_after(record["command"], "--set")), settings["data.set"], settings["method"])
        found[key][settings["seed"]].append(record["curves"])
    return found


def scores(curves: Sequence[Curves], column: str) -> tuple[float, float]:
    """Return mean and sample standard deviation of a column over the seeds, in percent."""
    name, summary = COLUMNS[column]
    values = [100 * summary(one.get(name) or one["global_accuracy"]) for one in curves]  # FedAvg's P is its G
    return statistics.fmean(values), statistics.stdev(values)


def test_every_printed_mean_is_that_of_the_recorded_runs() -> None:
    recorded, printed = recorded_curves(), printed_rows()
    assert len(printed) >= 70, "the tables are found"
    for row in printed:
        runs = recorded[row.changes, row.data, row.method]
        assert sorted(runs) == [1, 2, 3], row
        for column, cell in row.cells.items():
            first, last = (scores([of_seed[place] for of_seed in runs.values()], column) for place in (0, -1))
            fits = [all(abs(a - b) <= PRECISION for a, b in zip(cell, one, strict=True)) for one in (first, last)]
            assert any(fits), f"{row.data}, {row.method}, {column}: printed {cell}, recorded {first} or {last}"
